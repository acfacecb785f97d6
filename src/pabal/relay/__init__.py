"""The relay: one KakaoTalk channel, many bots. Messages go to bots, replies go back."""
