"""This deployment's own Celery settings; what correctness needs is in ares_celery/celery_app/settings.py already."""

from __future__ import annotations

# Flower and `celery events` see tasks start, retry and end.
worker_send_task_events = True
# Flower shows messages that wait for a slot, too.
task_send_sent_event = True
# One line a record, with process and task: what `ares up` and `docker logs` print.
worker_log_format = "%(asctime)s %(levelname)s %(processName)s %(name)s: %(message)s"
worker_task_log_format = "%(asctime)s %(levelname)s %(processName)s %(task_name)s[%(task_id)s]: %(message)s"
