"""Operation of a coordinator: its log, metrics, liveness and readiness, copies of its store, and governance papers."""
