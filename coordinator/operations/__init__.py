"""What machines that watch a coordinator see of it: its log, its metrics, and whether it is alive and ready."""
