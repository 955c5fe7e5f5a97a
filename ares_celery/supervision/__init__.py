"""Who notices that an agent's time has come: the sweep, the watchers of processes, the desk that deaths are told to."""
