"""The way back: bot replies through Kakao callbacks."""
