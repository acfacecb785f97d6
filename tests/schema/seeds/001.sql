-- What the seed refers to and leaves to another system.
CREATE SCHEMA notification;
CREATE SCHEMA guild;
CREATE SCHEMA identity;
CREATE TABLE guild.guilds (id UUID PRIMARY KEY);
CREATE TABLE identity.users (id UUID PRIMARY KEY);

CREATE TABLE notification.requests (
id UUID PRIMARY KEY,
recipient_type TEXT NOT NULL CHECK (recipient_type IN ('user_dm', 'guild_audit_channel', 'dashboard_toast')),
recipient_id TEXT NOT NULL,
guild_id UUID REFERENCES guild.guilds(id),
template_key TEXT NOT NULL,
payload JSONB NOT NULL,
state TEXT NOT NULL CHECK (state IN ('pending', 'sent', 'failed', 'suppressed')),
attempt_count INTEGER NOT NULL DEFAULT 0,
last_error TEXT,
scheduled_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
sent_at TIMESTAMPTZ,
created_at TIMESTAMPTZ NOT NULL DEFAULT NOW()
);

CREATE TABLE notification.preferences (
user_id UUID PRIMARY KEY REFERENCES identity.users(id),
dm_enabled BOOLEAN NOT NULL DEFAULT TRUE,
payment_notifications BOOLEAN NOT NULL DEFAULT TRUE,
recovery_notifications BOOLEAN NOT NULL DEFAULT TRUE,
antinuke_notifications BOOLEAN NOT NULL DEFAULT TRUE,
marketing_notifications BOOLEAN NOT NULL DEFAULT TRUE,
updated_at TIMESTAMPTZ NOT NULL DEFAULT NOW()
);

-- The seed lists its indexes in a table of names, columns and purposes.
CREATE INDEX requests_state_scheduled_idx ON notification.requests (state, scheduled_at) WHERE state = 'pending';
CREATE INDEX requests_guild_created_idx ON notification.requests (guild_id, created_at DESC);
CREATE INDEX requests_recipient_idx ON notification.requests (recipient_type, recipient_id, created_at DESC);
