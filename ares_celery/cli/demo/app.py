"""The app of the demo's processes. It leaves nothing behind: no results, no remote control."""

from __future__ import annotations

from ares_celery.celery_app.factory import create_app

app = create_app(
    celery_settings={
        "result_backend": "disabled://",
        "worker_enable_remote_control": False,
        "worker_send_task_events": False,
        "worker_log_format": "%(asctime)s %(levelname)s %(processName)s %(name)s: %(message)s",
    }
)
