// The texts of <pabal-toasts>, and of times.

const TEXTS = {
  en: {
    bell: (count) => (count ? `Notifications, ${count} unread` : "Notifications"),
    title: "Notifications",
    empty: "No notifications yet.",
    readAll: "Mark all as read",
    more: "Show more",
    read: "Mark as read",
    archive: "Archive",
    close: "Close",
    unread: "Unread",
    now: "just now",
    away: "Connection lost. Missed notifications appear once it is back.",
    refused: "Notifications are not available right now.",
    failed: "That did not work. Try again.",
  },
  ko: {
    bell: (count) => (count ? `알림, 읽지 않은 알림 ${count}개` : "알림"),
    title: "알림",
    empty: "아직 받은 알림이 없어요.",
    readAll: "모두 읽음으로 표시",
    more: "더 보기",
    read: "읽음으로 표시",
    archive: "보관",
    close: "닫기",
    unread: "읽지 않음",
    now: "방금",
    away: "연결이 끊겼어요. 다시 연결되면 그동안 온 알림도 보여 드려요.",
    refused: "지금은 알림을 볼 수 없어요.",
    failed: "처리하지 못했어요. 다시 시도해 주세요.",
  },
};
const UNITS = [["day", 86_400], ["hour", 3600], ["minute", 60]];

/** The language for a language tag: Korean, or English for all others. */
export function languageOf(tag) {
  return tag.toLowerCase().startsWith("ko") ? "ko" : "en";
}

export function textsOf(language) {
  return TEXTS[language];
}

/** How long ago a time is, in its largest unit. */
export function formatTimeAgo(time, language) {
  const seconds = Math.max(0, (Date.now() - Date.parse(time)) / 1000);
  const [unit, size] = UNITS.find(([, length]) => seconds >= length) ?? [];
  if (!unit) return TEXTS[language].now;
  return new Intl.RelativeTimeFormat(language, { numeric: "auto" }).format(-Math.floor(seconds / size), unit);
}
