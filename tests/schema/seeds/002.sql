-- 계정 (OpenClaw 인스턴스)
CREATE TABLE accounts (
  id UUID PRIMARY KEY DEFAULT gen_random_uuid(),
  openclaw_user_id TEXT NOT NULL UNIQUE,
  relay_token_hash TEXT NOT NULL,
  rate_limit_per_minute INT DEFAULT 60,
  created_at TIMESTAMPTZ DEFAULT NOW(),
  disabled_at TIMESTAMPTZ
);

-- 대화 매핑 (사용자 ↔ 계정)
CREATE TABLE conversation_mappings (
  conversation_key TEXT PRIMARY KEY,
  kakao_channel_id TEXT NOT NULL,
  plusfriend_user_key TEXT NOT NULL,
  account_id UUID REFERENCES accounts(id),
  state TEXT NOT NULL DEFAULT 'UNPAIRED',
  last_callback_url TEXT,
  last_callback_url_expires_at TIMESTAMPTZ,
  first_seen_at TIMESTAMPTZ DEFAULT NOW(),
  last_seen_at TIMESTAMPTZ DEFAULT NOW(),
  paired_at TIMESTAMPTZ,
  UNIQUE (kakao_channel_id, plusfriend_user_key)
);

-- 인바운드 메시지 큐
CREATE TABLE inbound_messages (
  id UUID PRIMARY KEY DEFAULT gen_random_uuid(),
  account_id UUID NOT NULL REFERENCES accounts(id),
  conversation_key TEXT NOT NULL,
  kakao_payload JSONB NOT NULL,
  normalized JSONB NOT NULL,
  callback_url TEXT NOT NULL,
  callback_expires_at TIMESTAMPTZ NOT NULL,
  status TEXT NOT NULL DEFAULT 'QUEUED',
  source_event_id TEXT,
  created_at TIMESTAMPTZ DEFAULT NOW(),
  delivered_at TIMESTAMPTZ,
  acked_at TIMESTAMPTZ,
  UNIQUE (source_event_id)
);

-- 페어링 코드
CREATE TABLE pairing_codes (
  code TEXT PRIMARY KEY,
  account_id UUID NOT NULL REFERENCES accounts(id),
  expires_at TIMESTAMPTZ NOT NULL,
  used_at TIMESTAMPTZ,
  used_by TEXT,
  metadata JSONB,
  created_at TIMESTAMPTZ DEFAULT NOW()
);

-- 인덱스
CREATE INDEX idx_messages_account_status ON inbound_messages(account_id, status);
CREATE INDEX idx_messages_expires ON inbound_messages(callback_expires_at);
CREATE INDEX idx_mappings_account ON conversation_mappings(account_id);
CREATE INDEX idx_pairing_expires ON pairing_codes(expires_at);
