"""Elements of a picture: escaped, coloured by class so that the style sheet's themes apply."""

from __future__ import annotations

from markupsafe import Markup, escape

Number = float | int


def element(tag: str, text: str | Markup = "", /, **attributes: Number | str) -> Markup:
    """`<tag …>text</tag>`; `class_` means class, `_` in a name means `-`."""
    named = Markup("").join(
        Markup(' {}="{}"').format(
            "class" if name == "class_" else name.replace("_", "-"), _shown(value)
        )
        for name, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(tag), named, escape(text))


def link(href: str, *parts: Markup) -> Markup:
    return element("a", Markup("").join(parts), href=href)


def title(text: str) -> Markup:
    return element("title", text)


def text(x: Number, y: Number, content: str, class_: str = "", anchor: str = "start") -> Markup:
    return element("text", content, x=x, y=y, class_=class_, text_anchor=anchor)


def picture(
    width: Number, height: Number, label: str, *parts: Markup, class_: str = "", role: str = "img"
) -> Markup:
    """A whole picture with its description; one with links in it is a `group`."""
    return element(
        "svg",
        Markup("").join(parts),
        viewBox=f"0 0 {_shown(width)} {_shown(height)}",
        width=width,
        height=height,
        role=role,
        aria_label=label,
        class_=f"picture {class_}".strip(),
    )


def _shown(value: Number | str) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)
