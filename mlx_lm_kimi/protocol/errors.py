"""Errors as OpenAI's API gives them."""

from __future__ import annotations

from typing import Any


class RequestError(Exception):
    """A fault of a request.

    Attributes:
        message: what is wrong, and the fix.
        param: the field, in OpenAI's path style (``tools[0].function.name``).
        code: the reason, as a word for programs.
        type: OpenAI's class of errors.
        status: the HTTP status.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        type: str = "invalid_request_error",
        status: int = 400,
    ):
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.type = type
        self.status = status

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}
