"""The arena: scenarios of faults against the agents of a namespace, and what came of them, told from their events.

Built on the public names of a Manager alone, so that the command line, the page and the testing kit share it.
:mod:`~ares_celery.arena.loading` reads scenarios, :mod:`~ares_celery.arena.runner` runs them,
:mod:`~ares_celery.arena.survival` draws faults by chance from a seed, :mod:`~ares_celery.arena.actions` and
:mod:`~ares_celery.arena.probes` are what scenarios call, :mod:`~ares_celery.arena.verdict` judges.
"""
