from ares_celery import AgentSpec, Manager

with Manager.from_env() as manager:                # a handle: leaving the block closes it and touches no agent
    manager.start_agent(AgentSpec(id="counter-1", type="counter", config={"step": 2}), if_exists="return")
    manager.process("counter-1", {"ask": "total"}, timeout=5)
    manager.stop_agent("counter-1", reason="done with it")
