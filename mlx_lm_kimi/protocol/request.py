# STUB by the lead, to be replaced
import json
from dataclasses import dataclass, field
from types import SimpleNamespace
MAX_BODY_BYTES = 64 << 20
@dataclass
class ChatRequest:
    history: object
    tools: list
    all_tools: list
    tool_choice: object
    model: str | None = None
    stream: bool = False
    include_usage: bool = False
    stop: list = field(default_factory=list)
    template_kwargs: dict = field(default_factory=dict)
    role_mapping: dict | None = None
    logprobs: bool = False
    top_logprobs: int = -1
    max_tokens: int | None = None
    def __getattr__(self, n): return None
def decode_body(raw): return json.loads(raw)
def parse_chat_request(b, family="kimi_k2"):
    ids=[c["id"] for m in b["messages"] for c in m.get("tool_calls") or []]
    return ChatRequest(SimpleNamespace(messages=b["messages"],used_ids=ids,next_index=len(ids)),b.get("tools") or [],b.get("tools") or [],SimpleNamespace(mode=b.get("tool_choice","auto")),b.get("model"),b.get("stream",False),bool((b.get("stream_options") or {}).get("include_usage")),max_tokens=b.get("max_tokens"),logprobs=b.get("logprobs",False),top_logprobs=b.get("top_logprobs",-1),stop=b.get("stop") or [])
def refuse_images(r): pass
