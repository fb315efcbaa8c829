"""How programs that speak OpenAI's protocol use this gateway, ready to be copied."""

from __future__ import annotations

from dataclasses import dataclass


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
    model = chosen or (models[0] if models else "MODEL")
    base = f"{url}/v1"
    return Connect(base, model, models, snippets(base, model), now_ms)


def snippets(base: str, model: str) -> tuple[Snippet, ...]:
    return (
        Snippet(
            "Any OpenAI program",
            "shell",
            f"export OPENAI_BASE_URL={base}\nexport OPENAI_API_KEY=hr-…   # make one under Keys",
        ),
        Snippet(
            "curl",
            "shell",
            f'curl {base}/chat/completions \\\n  -H "Authorization: Bearer $OPENAI_API_KEY" \\\n'
            '  -H "Content-Type: application/json" \\\n'
            f'  -d \'{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Hello"}}]}}\'',
        ),
        Snippet(
            "openai (Python)",
            "python",
            f'from openai import OpenAI\n\nclient = OpenAI(base_url="{base}")\nanswer = client.chat.completions.create(\n'
            f'    model="{model}",\n    messages=[{{"role": "user", "content": "Hello"}}],\n)\nprint(answer.choices[0].message.content)',
        ),
        Snippet(
            "openai, batch of a file",
            "python",
            f'from openai import OpenAI\n\nclient = OpenAI(base_url="{base}")\nfile = client.files.create(file=open("requests.jsonl", "rb"), purpose="batch")\n'
            'batch = client.batches.create(\n    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"\n)\nprint(batch.id, batch.status)',
        ),
        Snippet(
            "LangChain",
            "python",
            f'from langchain_openai import ChatOpenAI\n\nmodel = ChatOpenAI(model="{model}", base_url="{base}")\nprint(model.invoke("Hello").content)',
        ),
        Snippet(
            "llm",
            "yaml",
            f"# extra-openai-models.yaml in the folder that `llm logs path` names\n- model_id: headrace\n  model_name: {model}\n  api_base: {base}\n  api_key_name: headrace",
        ),
        Snippet(
            "LiteLLM",
            "yaml",
            f"model_list:\n  - model_name: {model}\n    litellm_params:\n      model: openai/{model}\n      api_base: {base}\n      api_key: os.environ/OPENAI_API_KEY",
        ),
        Snippet(
            "vLLM's benchmark",
            "shell",
            f"vllm bench serve --backend openai-chat --base-url {base.removesuffix('/v1')} \\\n  --endpoint /v1/chat/completions --model {model} --num-prompts 100",
        ),
    )
