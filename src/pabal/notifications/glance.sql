-- name: newest
-- By the ids, which are times: everybody's have no other order that an index knows. However rare what is chosen is, no more
-- than :reach rows are looked at; the last of them comes too, so that the next look can begin there.
select r.id, r.created_at, r.is_chosen, r.place = :reach as is_last
from (
    select r.id, r.created_at, row_number() over (order by r.id desc) as place,
           (:state::text is null or r.state = :state) and (:template::text is null or r.template_key = :template) as is_chosen
    from (
        select r.id, r.created_at, r.state, r.template_key
        from notification.requests r
        where r.id < coalesce(:before_id::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
        order by r.id desc
        limit :reach::bigint
    ) r
) r
where r.is_chosen or r.place = :reach
order by r.id desc
limit :limit;

-- name: unsent
-- The same for what was not sent: few, and each service's have an index of their own. A reach is gone for every service.
select r.id, r.created_at, r.is_chosen, r.place = :reach as is_last
from (
    select r.id, r.created_at, row_number() over (order by r.created_at desc, r.id desc) as place,
           (:template::text is null or r.template_key = :template) as is_chosen
    from (
        select r.id, r.created_at, r.template_key
        from (
            select ''
            union all
            select s.name from public.services s
        ) as w (service)
        cross join lateral (
            select r.id, r.created_at, r.template_key
            from notification.requests r
            where r.state = :state and r.state <> 'sent' and coalesce(r.source_service, '') = w.service
              and (r.created_at, r.id) < (
                  coalesce(:before::timestamptz, 'infinity'), coalesce(:before_id::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
              )
            order by r.created_at desc, r.id desc
            limit :reach::bigint
        ) r
        order by r.created_at desc, r.id desc
        limit :reach::bigint
    ) r
) r
where r.is_chosen or r.place = :reach
order by r.created_at desc, r.id desc
limit :limit;

-- name: received
-- The same for one recipient, through each channel in its own order.
select r.id, r.created_at, r.is_chosen, r.place = :reach as is_last
from (
    select r.id, r.created_at, row_number() over (order by r.created_at desc, r.id desc) as place,
           (:state::text is null or r.state = :state) and (:template::text is null or r.template_key = :template) as is_chosen
    from (
        select r.id, r.created_at, r.state, r.template_key
        from unnest('{user_dm,guild_audit_channel,dashboard_toast}'::text[]) as t (type)
        cross join lateral (
            select r.id, r.created_at, r.state, r.template_key
            from notification.requests r
            where r.recipient_type = t.type and r.recipient_id = :recipient
              and (r.created_at, r.id) < (
                  coalesce(:before::timestamptz, 'infinity'), coalesce(:before_id::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
              )
            order by r.created_at desc, r.id desc
            limit :reach::bigint
        ) r
        order by r.created_at desc, r.id desc
        limit :reach::bigint
    ) r
) r
where r.is_chosen or r.place = :reach
order by r.created_at desc, r.id desc
limit :limit;

-- name: glances
select r.id, r.recipient_type, r.recipient_id, r.template_key, r.state, r.reason, r.priority, r.created_at, r.sent_at
from notification.requests r
where r.id = any(:ids::uuid[]);
