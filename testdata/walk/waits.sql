-- Functions that call each other and wait in the innermost one, which has written of all of them two lines before.
create function waits(depth int) returns text language plpgsql as $$
declare
  calls text;
begin
  if depth > 0 then
    return waits(depth - 1);
  end if;
  get diagnostics calls = pg_context;
  raise log 'calls: %', replace(calls, e'\n', '; ');
  perform pg_sleep(600);
  return calls;
end $$;

create function "in (SQL)"(depth int) returns text language sql as $$ select max(waits(depth)) from generate_series(1, 1) $$;

create table places (place text);

create function "on (insert"() returns trigger language plpgsql as $$
begin

  new.place := "in (SQL)"(2);
  return new;
end $$;

create trigger fills before insert on places for each row execute function "on (insert"();

do $$ begin insert into places values (''); end $$;

