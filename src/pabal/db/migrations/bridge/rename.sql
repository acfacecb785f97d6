-- Renames the objects of a database that has exactly the migrations listed in applied.sha256. The present migrations run
-- after this file, in the same transaction: they replace functions, triggers, policies and comments, and create what is
-- new. Tables, columns and indexes keep their rows.

-- Tables, columns and sequences
alter table pabal.made rename to created_objects;
alter table pabal.event_lines rename to event_order;
alter table pabal.event_order rename column is_sure to is_checked;
alter table pabal.pulse rename to throughput;
alter table public.relay_news rename to relay_control_events;
alter sequence public.relay_news_id_seq rename to relay_control_events_id_seq;
alter table public.inbound_messages rename column handed to delivery_seq;
alter sequence public.inbound_messages_handed_seq rename to inbound_messages_delivery_seq;

-- Constraints
alter table pabal.created_objects rename constraint made_pkey to created_objects_pkey;
alter table pabal.event_order rename constraint event_lines_pkey to event_order_pkey;
alter table pabal.event_order rename constraint event_lines_id_key to event_order_id_key;
alter table public.relay_control_events rename constraint relay_news_pkey to relay_control_events_pkey;
alter table public.relay_control_events rename constraint relay_news_kind to relay_control_event_kind;
alter table public.relay_control_events rename constraint relay_news_for_somebody to relay_control_event_has_target;
alter table pabal.throughput rename constraint pulse_pkey to throughput_pkey;
alter table pabal.throughput rename constraint pulse_is_counted to throughput_counts_not_negative;
alter table public.services rename constraint service_disabled_says_when to service_disabled_has_time;
alter table public.service_tokens rename constraint revoked_says_when to revoked_has_time;
alter table public.event_queue rename constraint event_ends_with_time to event_ended_has_time;
alter table public.dead_letter_queue rename constraint one_dead_letter_per_death to one_dead_letter_per_failure;
alter table public.dead_letter_queue rename constraint dead_letter_resolved_by_somebody to dead_letter_resolver_is_resolved;
alter table public.relay_sessions rename constraint session_used_by_somebody_once to session_used_by_is_used;
alter table public.pairing_codes rename constraint pairing_code_used_by_somebody_once to pairing_code_used_by_is_used;
alter table public.conversation_mappings rename constraint conversation_pending_says_when to conversation_pending_has_time;
alter table public.conversation_mappings rename constraint conversation_blocked_says_when to conversation_blocked_has_time;
alter table public.conversation_mappings rename constraint conversation_owner_who_blocked to conversation_blocked_by_owner_has_account;
alter table public.inbound_messages rename constraint message_callback_and_deadline to message_callback_has_deadline;
alter table public.inbound_messages rename constraint message_acked_says_when to message_acked_has_time;
alter table public.inbound_messages rename constraint message_ended_says_when to message_ended_has_time;
alter table public.inbound_messages rename constraint message_ended_says_why to message_ended_has_reason;
alter table public.relay_replies rename constraint reply_settled_says_when to reply_settled_has_time;
alter table public.relay_replies rename constraint reply_answered_says_when to reply_answered_has_time;
alter table public.relay_replies rename constraint reply_has_something to reply_has_content;
alter table notification.requests rename constraint request_sent_says_when to request_sent_has_time;
alter table notification.requests rename constraint request_ended_says_when to request_ended_has_time;
alter table notification.requests rename constraint request_failed_says_what to request_failed_has_error;
alter table notification.requests rename constraint request_says_why to request_ended_has_reason;
alter table notification.attempts rename constraint attempt_says_why to attempt_has_reason;
alter table notification.addresses rename constraint address_unhealthy_says_why to address_unhealthy_has_reason;
alter table pabal.subscriptions rename constraint subscription_pushes_somewhere to subscription_push_has_url;
alter table pabal.subscriptions rename constraint subscription_disabled_says_why to subscription_disabled_has_reason;
alter table pabal.subscriptions rename constraint subscription_previous_ends to subscription_previous_secret_has_end;
alter table pabal.audit_seals rename constraint seal_names_its_rows to seal_lists_its_rows;
alter table pabal.audit_seals rename constraint seals_do_not_fork to seal_chain_is_linear;

-- From version 18 on, NOT NULL constraints have names too.
do $$
declare
  old record;
begin
  for old in
    select k.conrelid::regclass as relation, k.conname as name,
           format('%s_%s_not_null', c.relname, a.attname) as new_name
    from pg_constraint k
    join pg_class c on c.oid = k.conrelid
    join pg_attribute a on a.attrelid = k.conrelid and a.attnum = k.conkey[1]
    where k.contype = 'n'
      and k.conrelid in (
        'pabal.created_objects'::regclass, 'pabal.event_order'::regclass, 'pabal.throughput'::regclass,
        'public.relay_control_events'::regclass
      )
  loop
    execute format('alter table %s rename constraint %I to %I', old.relation, old.name, old.new_name);
  end loop;
end
$$;

-- Indexes
alter index pabal.event_lines_one_at_a_time rename to event_order_one_at_a_time;
alter index pabal.event_lines_unsure rename to event_order_unchecked;
alter index public.relay_news_created_at_idx rename to relay_control_events_created_at_idx;
alter index notification.requests_told_idx rename to requests_alert_recipient_idx;
alter index notification.requests_again_idx rename to requests_again_of_idx;

-- Functions. Those whose parameters have new names are dropped and created again.
drop function pabal.event_road(text, text, smallint, timestamptz, bigint);
alter function pabal.take(text, interval, interval, integer) rename to take_limit;
alter function pabal.ring() rename to notify_doorbell;
alter function pabal.remember(jsonb, integer, text, text, text) rename to append_error;
alter function pabal.event_heads(text, text[]) rename to event_first_due;
alter function pabal.events_arrive() rename to enqueue_inserted_events;
alter function pabal.event_moves() rename to sync_event_lane;
alter function pabal.line_follows() rename to maintain_event_order;
alter function pabal.leave_line(uuid) rename to remove_from_event_order;
alter function pabal.call_event(uuid) rename to make_event_due;
alter function pabal.event_leaves() rename to remove_deleted_event;
alter function pabal.event_spreads() rename to complete_broadcast;
alter function pabal.attempt_began() rename to record_attempt_start;
alter function pabal.place_secret() rename to assign_secret_slot;
alter function pabal.found_family() rename to create_token_family;
alter function pabal.join_family() rename to inherit_token_family;
alter function pabal.end_event() rename to set_event_processed_at;
alter function pabal.name_dead_letter() rename to number_dead_letter;
alter function pabal.as_like(text[]) rename to like_patterns;
alter function pabal.are_event_types(text[]) rename to are_event_patterns;
alter function pabal.open_since(interval) rename to long_transactions;
alter function notification.rule_subscribes() rename to sync_rule_subscription;
alter function notification.touch_toast() rename to number_toast_change;
alter function notification.line_up_toast() rename to lock_recipient_toasts;
alter function notification.wrong_variable(jsonb, jsonb) rename to first_invalid_variable;

-- Triggers. The first one would run its former body when the migration of sample events inserts no rows; it is created
-- again.
drop trigger event_queue_arrives on public.event_queue;
alter trigger event_queue_moves on public.event_queue rename to event_queue_sync_lane;
alter trigger event_queue_in_line on public.event_queue rename to event_queue_maintain_order;
alter trigger event_queue_leaves on public.event_queue rename to event_queue_remove_deleted;
alter trigger event_queue_rings on public.event_queue rename to event_queue_notify_inserted;
alter trigger event_queue_spreads on public.event_queue rename to event_queue_complete_broadcast;
alter trigger event_queue_attempt_began on public.event_queue rename to event_queue_attempt_start;
alter trigger event_queue_ends on public.event_queue rename to event_queue_set_processed_at;
alter trigger event_queue_born_dead_trigger on public.event_queue rename to event_queue_insert_failed_trigger;
alter trigger dead_letter_queue_names on public.dead_letter_queue rename to dead_letter_queue_number;
alter trigger service_secrets_place on public.service_secrets rename to service_secrets_assign_slot;
alter trigger service_tokens_found_family on public.service_tokens rename to service_tokens_create_family;
alter trigger refresh_tokens_join_family on public.refresh_tokens rename to refresh_tokens_inherit_family;
alter trigger rules_subscribe on notification.rules rename to rules_sync_subscription;
alter trigger toasts_arrive on notification.toasts rename to toasts_lock_insert;
alter trigger toasts_change on notification.toasts rename to toasts_lock_update;
alter trigger toasts_touch on notification.toasts rename to toasts_number_change;

-- Policies
alter policy "event_lines_service_role_all" on pabal.event_order rename to "event_order_service_role_all";
alter policy "relay_news_service_role_all" on public.relay_control_events rename to "relay_control_events_service_role_all";
alter policy "pulse_service_role_all" on pabal.throughput rename to "throughput_service_role_all";
alter policy "made_service_role_all" on pabal.created_objects rename to "created_objects_service_role_all";

-- Comments of objects that are created only where they are missing
do $$
declare
  created text[] := array(select kind || ' ' || name from pabal.created_objects);
begin
  if 'schema pabal' = any(created) then
    comment on schema pabal is 'Internal tables and functions of Pabal. Created by Pabal.';
  end if;
  if 'schema auth' = any(created) then
    comment on schema auth is 'Signed-in users, as in Supabase.';
  end if;
  if 'table auth.users' = any(created) then
    comment on table auth.users is 'Users who can sign in.';
    comment on column auth.users.id is 'User id.';
    comment on column auth.users.email is 'Email address.';
    comment on column auth.users.created_at is 'When the user was added.';
  end if;
  if 'function auth.uid()' = any(created) then
    comment on function auth.uid() is 'The signed-in user, from the claims of the request.';
  end if;
  if 'function public.update_updated_at_column()' = any(created) then
    comment on function public.update_updated_at_column() is 'Sets updated_at to the current time on every update.';
  end if;
  if 'table public.profiles' = any(created) then
    comment on table public.profiles is 'Roles of users.';
    comment on column public.profiles.id is 'The user.';
    comment on column public.profiles.role is 'user, admin or super_admin; the last two may read dead letters.';
    comment on column public.profiles.updated_at is 'When the row last changed.';
  end if;
  if 'schema notification' = any(created) then
    comment on schema notification is 'Notifications.';
  end if;
  if 'schema guild' = any(created) then
    comment on schema guild is 'Guilds that notifications refer to.';
  end if;
  if 'table guild.guilds' = any(created) then
    comment on table guild.guilds is 'Guilds that notifications refer to.';
    comment on column guild.guilds.id is 'Id of the guild.';
  end if;
  if 'schema identity' = any(created) then
    comment on schema identity is 'Users that preferences refer to.';
  end if;
  if 'table identity.users' = any(created) then
    comment on column identity.users.id is 'Id of the user.';
    comment on column identity.users.created_at is 'When the user was added.';
  end if;
end
$$;

-- Rows
update pabal.subscriptions set disabled_reason = 'the rule is disabled'
where mode = 'rule' and disabled_reason = 'the rule is switched off';
-- The last runs of chores, under their former names.
delete from pabal.chores;
