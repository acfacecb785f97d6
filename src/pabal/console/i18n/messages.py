"""What stories and the doctor are told with: each pattern of a phrase, and the same in Korean.

A Korean sentence may put the parts in another order (`{1}`), avoids what would need another particle after another
name, and ends without a full stop, as more may be put behind it.
"""

WORDS: dict[str, tuple[str, str]] = {
    # How an event, a notification, a dead letter stands
    "pending": ("대기", "pending"),
    "processing": ("처리 중", "processing"),
    "completed": ("완료", "completed"),
    "failed": ("실패", "failed"),
    "cancelled": ("취소됨", "cancelled"),
    "suppressed": ("보내지 않음", "suppressed"),
    "replayed": ("되살림", "replayed"),
    "resolved": ("해결됨", "resolved"),
    "unresolved": ("미해결", "unresolved"),
    # How a message and its reply stand
    "QUEUED": ("대기", "queued"),
    "DELIVERED": ("봇이 받음", "delivered"),
    "ACKED": ("처리됨", "acknowledged"),
    "EXPIRED": ("만료", "expired"),
    "CANCELLED": ("취소", "cancelled"),
    "sending": ("보내는 중", "being sent"),
    "sent": ("보냄", "sent"),
    "late": ("늦음", "late"),
    "shown": ("늦게 보여 줌", "shown late"),
    "awaited": ("기다리는 중", "awaited"),
    # Why a message ended
    "queue_life": ("대기 기한 지남", "waited too long"),
    "unpaired": ("연결 끊김", "disconnected"),
    "replaced": ("다른 봇에 연결", "connected to another bot"),
    "blocked": ("차단됨", "blocked"),
    "disabled": ("계정 꺼짐", "account disabled"),
    "erased": ("지움", "erased"),
    # Where a notification goes, why it does not, and what was found on the way
    "user_dm": ("Discord DM", "Discord DM"),
    "guild_audit_channel": ("길드 감사 채널", "guild audit channel"),
    "dashboard_toast": ("대시보드", "dashboard"),
    "duplicate": ("같은 알림이 있음", "duplicate"),
    "expired": ("기한 지남", "too late"),
    "storm": ("긴급 알림이 몰림", "storm of emergencies"),
    "exhausted": ("세 번 모두 실패", "three attempts failed"),
    "refused": ("거절됨", "refused"),
    "unknown": ("결과를 모름", "outcome unknown"),
    "unrenderable": ("문구를 쓸 수 없음", "text cannot be written"),
    "emergency": ("긴급", "emergency"),
    "no_preferences": ("수신 설정 없음", "no preferences"),
    "dm_enabled": ("DM을 받음", "DMs wanted"),
    "dm_disabled": ("DM을 꺼 둠", "DMs switched off"),
    "category_on": ("이 종류를 받음", "category wanted"),
    "category_off": ("이 종류를 꺼 둠", "category switched off"),
    "no_flag": ("끌 수 없는 종류", "category that cannot be switched off"),
    "address_healthy": ("주소 정상", "address healthy"),
    "address_unhealthy": ("주소가 막힘", "address refuses us"),
    "by_day": ("낮 시간", "daytime"),
    "night_consent": ("밤에도 받기로 동의함", "consent for the night"),
    "night_waits": ("밤이라 아침까지 기다림", "waits for the morning"),
    "at_send": ("보내기 직전에 다시 확인함", "looked at again"),
    "first_of_incident": ("처음 알리는 사건", "first of its incident"),
    "same_incident": ("방금 알린 사건", "incident told just before"),
    "too_many_emergencies": ("긴급 알림이 너무 많음", "too many emergencies"),
    "raised": ("운영자에게 알림", "operator told"),
    "notification.again": ("다시 보내게 함", "sent again"),
    "notification.cancelled": ("알림을 취소함", "called off"),
    "preference.overridden": ("수신 설정과 상관없이 보냄", "preference overridden"),
}
"""The words that rows are written with, as a page says them: in Korean and in English."""

KOREAN: dict[str, str] = {
    # Spans
    "{} ms": "{}ms",
    "{} s": "{}초",
    "{} min": "{}분",
    "{} min {} s": "{}분 {}초",
    "{} h {} min": "{}시간 {}분",
    "{} d {} h": "{}일 {}시간",
    # Whoever, and how many of what
    "everybody": "모두",
    "everybody who wants it": "구독한 모두",
    "somebody": "알 수 없는 곳",
    "{} {}": "{1} {0}건",
    "{} by {}": "{0} ({1})",
    "{} ({}) by {}": "{0}: {1} ({2})",
    # Events
    "{} published by {} for {}": "{1} 서비스에서 {0} 이벤트를 발행했습니다. 받는 곳: {2}",
    "{}, a delivery of {}": "{0}. 원래 이벤트: {1}",
    "{}, to be delivered later": "{0}. 정해진 때에 전달합니다",
    "owed to {}": "{} 서비스에 전달합니다",
    "attempt {} began, by {}": "{1}에서 {0}번째 시도를 시작했습니다",
    "attempt {} by {} succeeded": "{1}에서 한 {0}번째 시도가 성공했습니다",
    "attempt {} by {} failed: {}": "{1}에서 한 {0}번째 시도가 실패했습니다: {2}",
    "{} (those before are no longer kept)": "{} (그 전의 시도는 남아 있지 않습니다)",
    "put off, no attempt spent: {}": "미뤘습니다. 시도로 세지 않습니다: {}",
    "completed by hand": "사람이 직접 완료했습니다",
    "expired: nobody was handed it in time": "제때 가져간 곳이 없어 만료되었습니다",
    "cancelled by {}": "취소했습니다 ({})",
    "{}, {} deliveries": "{0}. 전달 {1}건",
    "died: {}; dead letter {}": "끝내 실패했습니다: {0} · 데드 레터 {1}",
    "died, for the {}. time: {}; dead letter {}": "{0}번째로 끝내 실패했습니다: {1} · 데드 레터 {2}",
    "replayed by {}": "되살렸습니다 ({})",
    "{}, as the new event {}": "{0}. 새 이벤트: {1}",
    "dead letter resolved": "데드 레터를 해결로 표시했습니다",
    "dead letter resolved by {}": "데드 레터를 해결로 표시했습니다 ({})",
    "pending, due": "대기 중, 차례가 되었습니다",
    "pending, due in {}": "대기 중, {} 뒤에 전달합니다",
    "pending, due; no handler of {} takes {}": "대기 중, {0} 서비스에 {1} 이벤트를 받는 핸들러가 없습니다",
    "pending, behind or at the head of its line": "대기 중, 같은 순서 키 안에서 차례를 기다립니다",
    "processing, held by {}; the lease ends in {}": "처리 중, {0}에서 맡은 기한이 {1} 남았습니다",
    "processing, held by {}; the lease has ended": "처리 중, {}에서 맡은 기한이 지났습니다",
    "deliveries: {}": "받는 서비스별: {}",
    "nobody had subscribed to it": "구독한 서비스가 없었습니다",
    "its row is gone; this is from its dead letters and the audit log": (
        "행은 지워졌고, 데드 레터와 감사 로그에 남은 것입니다"
    ),
    # Messages and replies
    "accepted from {}, with a callback": "{} 대화에서 콜백과 함께 받았습니다",
    "accepted from {}, without a callback": "{} 대화에서 콜백 없이 받았습니다",
    "handed out to {}": "{}에 전달했습니다",
    "handed out {} times, the last time to {}": "{0}번 전달했고, 마지막으로 {1}에 전달했습니다",
    "stream {} of {}": "{1}의 스트림 {0}",
    "stream {} of {}, which has closed since": "{1}의 스트림 {0}(그 뒤 닫힘)",
    "a poller of {}": "{}의 폴링",
    "its account": "봇",
    "acknowledged by its account": "봇이 확인했습니다",
    "expired: nobody fetched it in time": "제때 가져간 봇이 없어 만료되었습니다",
    "expired: handed out, but never answered": "전달했지만 답이 없어 만료되었습니다",
    "cancelled: {}": "취소되었습니다: {}",
    "the conversation was unpaired": "대화의 연결이 끊겼습니다",
    "the conversation was paired with another account": "대화가 다른 계정에 연결되었습니다",
    "the conversation was blocked": "대화가 차단되었습니다",
    "the account was disabled": "계정이 꺼졌습니다",
    "the conversation was erased": "대화가 지워졌습니다",
    "no answer yet: the hub takes the callback for a short text of its own": (
        "아직 답이 없어 허브가 콜백으로 짧은 안내를 보냅니다"
    ),
    "answered; the callback is taken, as reply {}": "봇이 답했고, 콜백을 씁니다. 답: {}",
    "answered too late for the callback; kept as reply {}": "콜백을 쓰기에는 늦게 답했습니다. 보관한 답: {}",
    "answered, but Kakao was not reached ({}); kept as reply {}": (
        "봇이 답했지만 카카오에 닿지 못했습니다 ({}). 보관한 답: {}"
    ),
    "the user is to be told so in front of the next answer": "다음 답 앞에서 사용자에게 알립니다",
    "the answer": "답을",
    "the hub's text": "허브의 안내를",
    "Kakao took {}": "카카오가 {} 받았습니다",
    "Kakao took {}: {}": "카카오가 {} 받았습니다: {}",
    "Kakao refused {}: {}": "카카오가 {} 거절했습니다: {}",
    "nobody knows whether Kakao took {}: {}": "카카오가 {} 받았는지 알 수 없습니다: {}",
    "shown in front of the answer": "다음 답 앞에 보여 주었습니다",
    "shown in front of the answer to {}": "다음 메시지의 답 앞에 보여 주었습니다: {}",
    "the late answer to {} is put in front of its own": "이전 메시지의 늦은 답을 앞에 붙였습니다: {}",
    "no longer kept: the user did not write again in time": "사용자가 제때 다시 쓰지 않아 더는 보관하지 않습니다",
    "{}, expired": "{}, 기한이 지났습니다",
    "{}, expires in {}": "{}, 만료까지 {} 남았습니다",
    "{}, held by {}; the lease ends in {}": "{}, {}에서 맡은 기한이 {} 남았습니다",
    "{} to {}, who let go of it; expired": "{0}, {1}에서 맡은 기한도, 대기 기한도 지났습니다",
    "{} to {}, who let go of it; expires in {}": "{0}, {1}에서 맡은 기한이 지났고 만료까지 {2} 남았습니다",
    "{}, reply {}": "{}, 답: {}",
    "{}, no reply": "{}, 답 없음",
    # Notifications
    "rule {}": "규칙 {}",
    "{} for {} {} asked for by {}": "{0} 알림을 요청했습니다 ({3}). 받는 곳: {1} {2}",
    "suppressed at once, {}: {}": "요청할 때 이미 보내지 않기로 했습니다 ({}): {}",
    "to be sent: {}": "보내기로 했습니다: {}",
    "attempt {} by {} got through": "{1}에서 한 {0}번째 시도가 전해졌습니다",
    "{}, written down instead of sent: there is no Discord token": ("{}. Discord 토큰이 없어 보내는 대신 기록했습니다"),
    "{}: Discord message {} in channel {}": "{0}: Discord 채널 {2}, 메시지 {1}",
    "suppressed as it was about to be sent: {}": "보내려던 때에 그만두었습니다: {}",
    "attempt {} by {} was never heard of again: {}": "{1}에서 한 {0}번째 시도는 그 뒤로 소식이 없습니다: {2}",
    "attempt {} by {} failed for good: {}": "{1}에서 한 {0}번째 시도가 끝내 실패했습니다: {2}",
    "failed, {}: {}": "실패했습니다 ({}): {}",
    "suppressed: {}": "보내지 않았습니다: {}",
    "is in the dashboard": "대시보드에 도착했습니다",
    "was on a screen": "화면에 보였습니다",
    "was read": "읽었습니다",
    "was put away": "보관했습니다",
    "pending, held by {}; the lease ends in {}": "대기 중, {0}에서 맡은 기한이 {1} 남았습니다",
    # What the doctor looks at
    "address": "주소",
    "callback origins": "콜백 주소",
    "database": "데이터베이스",
    "database role": "데이터베이스 역할",
    "disk": "디스크",
    "doorbell": "알림벨",
    "encrypted values": "암호화한 값",
    "keys": "키",
    "passwords": "비밀번호 파일",
    "pooler": "풀러",
    "schema": "스키마",
    "settings": "설정",
    "signing key": "서명 키",
    "trusted proxies": "믿는 프록시",
    "webhook secret": "웹훅 비밀값",
    # What it finds, and what is to be done
    "no hub is running on {}": "{}에서 실행 중인 허브가 없습니다",
    "start one with `pabal up`, or set PABAL_DATABASE_URL": "`pabal up`으로 시작하거나 PABAL_DATABASE_URL을 정하세요",
    "check PABAL_DATABASE_URL and that the server runs": "PABAL_DATABASE_URL과 서버가 켜져 있는지 확인하세요",
    "the address logs in as a superuser": "슈퍼유저로 접속하는 주소입니다",
    "the address logs in as a superuser; the hub puts on service_role for its work": (
        "슈퍼유저로 접속하는 주소입니다. 허브는 service_role로 바꾸어 일합니다"
    ),
    "give the hub a login of its own that is a member of service_role": (
        "service_role에 속한 허브 전용 로그인을 만들어 주세요"
    ),
    "PostgreSQL {}.{} answers": "PostgreSQL {}.{} 응답함",
    "Pabal needs PostgreSQL {} or newer": "파발에는 PostgreSQL {} 이상이 필요합니다",
    "in between; LISTEN and migrations take the direct road": (
        "중간에 있습니다. LISTEN과 마이그레이션은 직접 연결을 씁니다"
    ),
    "a transaction pooler stands in between: no LISTEN, so lanes are looked at every second": (
        "트랜잭션 풀러가 중간에 있어 LISTEN을 쓸 수 없습니다. 레인을 1초마다 살펴봅니다"
    ),
    "set PABAL_DATABASE_DIRECT_URL to the same database without the pooler": (
        "PABAL_DATABASE_DIRECT_URL에 풀러를 거치지 않는 같은 데이터베이스 주소를 정하세요"
    ),
    "see `pabal migrate status`": "`pabal migrate status`를 확인하세요",
    "newer than this Pabal ({})": "이 파발보다 새 스키마입니다 ({})",
    "install the newer Pabal": "더 새로운 파발을 설치하세요",
    "files changed after they were applied: {}": "적용한 뒤에 바뀐 파일: {}",
    "restore the files": "파일을 되돌리세요",
    "{} migrations pending": "남은 마이그레이션 {}개",
    "run `pabal migrate up`": "`pabal migrate up`을 실행하세요",
    "{} migrations applied, none pending": "마이그레이션 {}개 적용, 남은 것 없음",
    "check PABAL_DATABASE_DIRECT_URL": "PABAL_DATABASE_DIRECT_URL을 확인하세요",
    "NOTIFY reaches LISTEN": "NOTIFY가 LISTEN에 닿습니다",
    "NOTIFY does not reach LISTEN, so lanes are looked at every second": (
        "NOTIFY가 LISTEN에 닿지 않습니다. 레인을 1초마다 살펴봅니다"
    ),
    "{} GiB free at {}": "{1}에 {0} GiB 남음",
    "make room, or move PABAL_DATA_DIR": "공간을 비우거나 PABAL_DATA_DIR을 옮기세요",
    "{} can be read by others ({})": "다른 사용자가 읽을 수 있는 파일: {} ({})",
    "bring back a copy: without them nothing encrypted can be read": (
        "복사본을 되살리세요. 키가 없으면 암호화한 것을 읽을 수 없습니다"
    ),
    "none yet; the first start makes them": "아직 없습니다. 처음 시작할 때 만듭니다",
    "in {}, while the database may serve several hosts": "{}에 있지만, 데이터베이스는 여러 호스트가 쓸 수 있습니다",
    "set PABAL_KEYS to what is in that file, the same wherever the hub runs": (
        "허브가 도는 모든 곳에서 PABAL_KEYS를 그 파일의 내용으로 똑같이 정하세요"
    ),
    "in {}": "{}에 있음",
    "from PABAL_KEYS": "PABAL_KEYS에서 읽음",
    "{} has signed for {} days": "{0} 키로 {1}일째 서명하고 있습니다",
    "run `pabal keys rotate`": "`pabal keys rotate`를 실행하세요",
    "not looked at: {}": "살펴보지 못했습니다: {}",
    "look again when that is mended": "그것을 고친 뒤 다시 살펴보세요",
    "{}, all under keys that are here": "{}개, 모두 여기 있는 키로 열립니다",
    "{} of {} are under no key that is here": "{1}개 중 {0}개는 여기 있는 키로 열 수 없습니다",
    "bring back {}; `pabal keys rewrap` names the rows": (
        "되살릴 키: {}. 어느 행인지는 `pabal keys rewrap`이 알려 줍니다"
    ),
    "the keys": "전의 키",
    "listens on {}:{}": "{}:{}에서 받음",
    "{}, reachable from outside, and no https PABAL_PUBLIC_URL is set": (
        "{}. 밖에서 닿을 수 있는데 https로 된 PABAL_PUBLIC_URL이 없습니다"
    ),
    "put TLS in front and set PABAL_PUBLIC_URL, or listen on 127.0.0.1": (
        "앞에 TLS를 두고 PABAL_PUBLIC_URL을 정하거나, 127.0.0.1에서만 받으세요"
    ),
    "set": "정해져 있음",
    "not set: anybody who knows the address can post as Kakao": (
        "정하지 않았습니다. 주소를 아는 누구나 카카오인 척 보낼 수 있습니다"
    ),
    "set PABAL_WEBHOOK_SECRET and send it as a header from Kakao's skill settings": (
        "PABAL_WEBHOOK_SECRET을 정하고, 카카오 스킬 설정에서 헤더로 보내게 하세요"
    ),
    "Kakao's own only": "카카오의 주소만",
    "callbacks may also go to {}": "콜백을 보낼 수 있는 다른 주소: {}",
    "empty PABAL_CALLBACK_ALLOW outside development": "개발 환경이 아니면 PABAL_CALLBACK_ALLOW를 비우세요",
    "{} trusts everybody's X-Forwarded-For": "{} 설정은 누구의 X-Forwarded-For든 믿습니다",
    "name your proxy's address in PABAL_TRUSTED_PROXIES": "PABAL_TRUSTED_PROXIES에 프록시의 주소를 적으세요",
    "none": "없음",
    "{} is not a setting of Pabal": "{}: 파발의 설정이 아닙니다",
    "see `pabal settings`": "`pabal settings`를 확인하세요",
}
