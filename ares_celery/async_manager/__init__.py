"""The Manager for event loops; see :class:`ares_celery.async_manager.core.CoreAsyncManager`."""
