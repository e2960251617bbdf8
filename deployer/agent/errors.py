"""What the agent tells the controller when it will not or cannot go on."""


class AgentError(Exception):
    """A refusal with a stable kind, one sentence, a hint, and the exit code the controller is to end with."""

    def __init__(self, kind: str, message: str, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint
        self.exit_code = exit_code
