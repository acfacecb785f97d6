"""The inbound path: Kakao webhooks become messages in the queue, or commands that are answered at once."""
