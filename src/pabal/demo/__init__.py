"""The demo: simulated Kakao, Discord, bot and shop on loopback, to try the hub without them."""
