"""The first page."""

SAYS: dict[str, tuple[str, str]] = {
    "relay carries": ("카카오톡 채널 ↔ 봇", "KakaoTalk channel ↔ bots"),
    "events carries": ("서비스 → 서비스", "service → service"),
    "notifications carries": ("이벤트 → 사람", "event → people"),
    "waiting": ("대기", "Waiting"),
    "oldest": ("가장 오래된 대기", "Oldest waiting"),
    "in flight": ("처리 중", "In flight"),
    "done pace": ("완료", "Done"),
    "failed pace": ("실패한 시도", "Failed attempts"),
    "a minute": ("분당 {}", "{} a minute"),
    "drains": ("비워지기까지", "Empty in"),
    "drains unknown": ("알 수 없음", "unknown"),
    "drains why": (
        "최근 5분 동안 처리된 것이 없어 가늠할 수 없습니다.",
        "Nothing ended in the last five minutes, so nobody can say.",
    ),
    "drains how": (
        "최근 5분의 속도로, 더 들어오는 것이 없을 때",
        "at the pace of the last five minutes, if nothing more came",
    ),
    "drains held": ("수신 재개 뒤", "once taken again"),
    "drains but": ("({}개 빼고)", "but for {}"),
    "drains held why": (
        "받는 쪽이 멈췄거나 핸들러가 없어 나가지 않는 이벤트가 있습니다. 위에 적혀 있습니다.",
        "Some events are taken by nobody: their receivers get none, or no handler wants them. It says above which.",
    ),
    "dead": ("실패", "Dead"),
    "nothing waits": ("없음", "none"),
    "chart of": ("{}: 지난 1시간, 1분마다", "{}: the last hour, minute by minute"),
    "minute told": ("{}분 전: 완료 {}, 실패 {}", "{} min ago: {} done, {} failed"),
    "hour told": (
        "지난 1시간: 완료 {}, 실패 {}. 가장 바쁜 1분에 {}.",
        "The last hour: {} done, {} failed; {} in its busiest minute.",
    ),
    "hour empty": ("지난 1시간 동안 처리된 것이 없습니다.", "Nothing ended in the last hour."),
    "all well": ("모두 정상입니다.", "All is well."),
    "letters left": (
        "아무도 확인하지 않은 데드 레터가 {count}개 있습니다.",
        "Dead letters that nobody has seen to: {count}.",
    ),
    "notices undelivered": (
        "지난 1시간 동안 보내지 못한 알림이 {count}개 있습니다.",
        "Notifications that could not be delivered in the last hour: {count}.",
    ),
    "relay waiting": (
        "가장 오래된 메시지가 봇을 {age}째 기다립니다.",
        "The oldest message has waited {age} for its bot.",
    ),
    "events waiting": (
        "가장 오래된 이벤트가 {age}째 기다립니다.",
        "The oldest event has waited {age}.",
    ),
    "notifications waiting": (
        "가장 오래된 알림이 {age}째 기다립니다.",
        "The oldest notification has waited {age}.",
    ),
    "events unworked": (
        "이벤트 {count}개가 기다리는데 일하는 워커가 없습니다.",
        "Events wait ({count}), and no worker is there to take them.",
    ),
    "notifications unworked": (
        "알림 {count}개가 기다리는데 일하는 워커가 없습니다.",
        "Notifications wait ({count}), and no worker is there to take them.",
    ),
    "worker silent": (
        "워커 {worker}의 소식이 {age} 동안 없습니다.",
        "The worker {worker} has not been heard of for {age}.",
    ),
    "chores failing": (
        "마지막 실행에 실패한 정비 작업이 {count}개 있습니다: {names}",
        "Chores that failed when they last ran ({count}): {names}",
    ),
    "chores overdue": (
        "제때 실행되지 않은 정비 작업이 {count}개 있습니다: {names}",
        "Chores that nobody has done in time ({count}): {names}",
    ),
    "events unhandled": (
        "{service}에 온 이벤트 {count}개를 받는 핸들러가 없습니다.",
        "Events for {service} that none of its handlers takes: {count}.",
    ),
    "receiver paused": (
        "{service}의 구독이 일시 정지되어 이벤트 {count}개가 기다립니다.",
        "A subscription of {service} is paused, and events wait for it: {count}.",
    ),
    "receiver disabled": (
        "{service}의 구독이 중단되어 이벤트 {count}개가 기다립니다.",
        "A subscription of {service} was given up, and events wait for it: {count}.",
    ),
    "receiver resting": (
        "{service}의 수신처가 계속 실패해 잠시 보내지 않습니다. 이벤트 {count}개가 기다립니다.",
        "A receiver of {service} keeps failing and is left in peace for a while; events wait for it: {count}.",
    ),
    "doorbell deaf": (
        "초인종(LISTEN)이 들리지 않아 1초 간격으로 확인합니다.",
        "The doorbell (LISTEN) is not heard; lanes are looked at every second instead.",
    ),
    "workers": ("워커", "Workers"),
    "no workers": (
        "일하는 워커가 없습니다. pabal up이나 pabal work가 워커를 켭니다.",
        "No workers. They are started by pabal up and pabal work.",
    ),
    "worker name": ("워커", "Worker"),
    "worker program": ("프로그램", "Program"),
    "worker lanes": ("맡은 일", "Works on"),
    "worker holds": ("처리 중", "Holds"),
    "worker started": ("시작", "Started"),
    "worker seen": ("마지막 소식", "Last heard"),
    "worker quiet": ("소식 없음", "silent"),
    "ago": ("{} 전", "{} ago"),
    "chores": ("정비 작업", "Chores"),
    "chores in time": ("제때 실행된 작업 {}개", "Done in time: {}"),
    "chore rows": ("{}행", "rows: {}"),
    "chore never": ("아직 실행 전", "not yet run"),
    "chore late": ("지연", "overdue"),
    "chore failed": ("실패", "failed"),
}
