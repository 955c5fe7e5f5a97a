"""The only importer of Celery and kombu: tasks, routing, signals, transport, client."""
