"""The relay: from a shared KakaoTalk channel to many bots and back."""
