-- acquire + release, lease table, release deletes the row and does not wait for the flush
\set name 1000000000000 + random(1, :names)
\set owner 2000000000 + :client_id
INSERT INTO lease_delete AS l (name, owner, token, expires_at)
    VALUES (:name::text, :owner::text, nextval('lease_delete_token'), clock_timestamp() + interval '30 s')
    ON CONFLICT (name) DO UPDATE
        SET owner = excluded.owner, token = excluded.token, expires_at = excluded.expires_at
        WHERE l.expires_at < clock_timestamp()
    RETURNING token;
DELETE FROM lease_delete WHERE name = :name::text AND owner = :owner::text
    RETURNING set_config('synchronous_commit', 'off', true);
