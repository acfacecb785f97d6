"""The path of Kakao's webhook that the console shows and the demo calls. It has an older one, /kakao/webhook."""

WEBHOOK_PATH = "/kakao-talkchannel/webhook"
