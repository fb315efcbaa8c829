"""How programs that speak OpenAI's protocol use this gateway, ready to be copied."""

from __future__ import annotations

from dataclasses import dataclass

#: Program and language, then the text; <base>, <root> and <model> are filled in.
_SNIPPETS = """\
Any OpenAI program | shell
export OPENAI_BASE_URL=<base>
export OPENAI_API_KEY=hr-…   # make one under Keys
---
curl | shell
curl <base>/chat/completions \\
  -H "Authorization: Bearer $OPENAI_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '{"model": "<model>", "stream": true, "messages": [{"role": "user", "content": "Hello"}]}'
---
openai (Python) | python
from openai import OpenAI

client = OpenAI(base_url="<base>")
answer = client.chat.completions.create(
    model="<model>",
    messages=[{"role": "user", "content": "Hello"}],
)
print(answer.choices[0].message.content)
---
openai, batch of a file | python
from openai import OpenAI

client = OpenAI(base_url="<base>")
file = client.files.create(file=open("requests.jsonl", "rb"), purpose="batch")
batch = client.batches.create(
    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
)
print(batch.id, batch.status)
---
LangChain | python
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="<model>", base_url="<base>")
print(model.invoke("Hello").content)
---
llm | yaml
# extra-openai-models.yaml in the folder that `llm logs path` names
- model_id: headrace
  model_name: <model>
  api_base: <base>
  api_key_name: headrace
---
LiteLLM | yaml
model_list:
  - model_name: <model>
    litellm_params:
      model: openai/<model>
      api_base: <base>
      api_key: os.environ/OPENAI_API_KEY
---
vLLM's benchmark | shell
vllm bench serve --backend openai-chat --base-url <root> \\
  --endpoint /v1/chat/completions --model <model> --num-prompts 100"""


@dataclass(frozen=True)
class Snippet:
    """One program's way in."""

    name: str
    language: str
    text: str


@dataclass(frozen=True)
class Connect:
    """The page."""

    base_url: str
    model: str
    models: tuple[str, ...]
    snippets: tuple[Snippet, ...]
    at_ms: int


def connect(url: str, models: tuple[str, ...], now_ms: int, chosen: str = "") -> Connect:
    """Snippets for a model, the first on offer if none is named."""
    model, base = chosen or (models[0] if models else "MODEL"), f"{url}/v1"
    filled = _SNIPPETS.replace("<base>", base).replace("<root>", url).replace("<model>", model)
    snippets = []
    for part in filled.split("\n---\n"):
        title, _, text = part.partition("\n")
        name, _, language = title.partition(" | ")
        snippets.append(Snippet(name, language, text))
    return Connect(base, model, models, tuple(snippets), now_ms)
