"""The interface for programs: operations of the analysts' service as JSON over HTTPS, jobs, OpenAPI."""
