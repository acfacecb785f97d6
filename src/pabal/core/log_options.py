"""The values of PABAL_LOG_LEVEL and PABAL_LOG_FORMAT, apart from the logging itself, which takes long to import."""

from typing import Literal

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "pretty"]
