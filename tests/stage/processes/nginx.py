"""Where nginx has what it passes on streams with."""

from __future__ import annotations

from pathlib import Path

STREAM = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
