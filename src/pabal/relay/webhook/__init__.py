"""The inbound path: Kakao's webhooks become queued messages, or commands that the hub answers itself."""
