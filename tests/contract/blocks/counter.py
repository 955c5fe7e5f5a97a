from ares_celery import AgentContext, Event, agent

@agent("counter")                                  # the type; the class is its factory, called for every incarnation
class Counter:
    def __init__(self, agent_id: str, step: int = 1) -> None:   # the spec's config arrives as keywords
        self.agent_id, self.step, self.total = agent_id, step, 0

    async def start(self, ctx: AgentContext) -> None:           # optional main loop
        while not ctx.stop_requested:
            await ctx.emit("counter.ticked", {"by": self.step})  # durable first …
            await ctx.sleep(0.1)                                 # wakes at once on stop, pause, drain

    def apply(self, event: Event) -> None:                       # … then applied; replay calls the same method
        if event.type == "counter.ticked":
            self.total += event.payload["by"]

    async def process(self, ctx: AgentContext, message: object) -> object:   # optional: answers Manager.process()
        return {"total": self.total}

    def snapshot(self) -> dict[str, object]: return {"total": self.total}    # optional: StatefulAgent
    def restore_state(self, state: dict[str, object]) -> None: self.total = int(str(state["total"]))
