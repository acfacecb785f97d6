"""What a browser keeps for us: out of reach of scripts and other sites, and of plain HTTP where the hub has HTTPS."""

from starlette.responses import Response

from pabal.wiring import Hub


def give(hub: Hub, answer: Response, name: str, value: str, *, seconds: int, path: str) -> None:
    secure = (hub.settings.public_url or "").startswith("https://")
    answer.set_cookie(name, value, max_age=seconds, path=path, httponly=True, secure=secure, samesite="lax")
