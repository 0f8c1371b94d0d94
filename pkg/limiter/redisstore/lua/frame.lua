-- A batch of requests, one after the other, each decided as a whole: limiter.Decide (pkg/limiter/decide.go) again,
-- number for number. A request sees what the ones before it were charged.
--
-- Before this text stand call.lua, prelude.lua and the files of the algorithms that are needed, each of which has set
-- steps[number].

local HIT = '<dddd' -- each further one of a request
local PAY, TRY, UNDO = 8, 16, 32 -- further modes
local NO_ANSWER = string.rep('\0', 40)

local policies = {}
for i = 5, #ARGV do
  local count = #ARGV[i] / 8
  local policy = {struct.unpack('<' .. string.rep('d', count), ARGV[i])}
  policy.step, policy.denied, policy.largest = steps[policy[count - 2]], policy[count - 1], policy[count]
  policies[i - 4] = policy
end

-- refunded[key] is what the batch gives back, less what it charges after that: an exchange of permits on lease, which
-- takes at least what it gives back, lets nothing pass that could not before, and nobody needs to hear of it.
local refunded = {}
local function tally(key, n)
  if n < 0 then
    refunded[key] = (refunded[key] or 0) - n
  elseif refunded[key] then
    refunded[key] = refunded[key] - n
  end
end

-- state[key] is the newest state, false where there is none or it is as new; expires[key] is set where it changed.
local state, found, expires = {}, {}, {}
for from = 1, #KEYS, 1000 do -- unpack has a bound
  local last = min(from + 999, #KEYS)
  for i, v in ipairs(redis.call('MGET', unpack(KEYS, from, last))) do
    local key = KEYS[from + i - 1]
    state[key], found[key] = v, v
  end
end

-- single decides a request of one hit that is to be enforced, as most are, and answers it. It has nothing to undo.
local function single(key, policy, n)
  reading = key
  local changed, new, fits, remains, again, fresh, waits, linger =
    policy.step(policy, state[key], now, n, TAKE_OR_PENALTY, policy.denied)
  if changed then
    state[key], expires[key] = new, fresh + (linger or 0)
  end
  if fits or n < 0 then tally(key, n) end
  return struct.pack(ANSWER, fits and 1 or 0, remains, again, fresh, waits or 0)
end

local answers, failures, tried = {}, {}, {}
local function failed(request, why)
  failures[#failures + 1] = request
  failures[#failures + 1] = type(why) == 'table' and why.err or tostring(why)
end

-- as_stored is a state as Redis has it, '' for none.
local function as_stored(value)
  if type(value) == 'number' then return string.format('%.17g', value) end
  return value or ''
end

-- as_told is a state as who tried is told of it: of a long one, a log of more than a thousand hits, only what tells it
-- from others. It is then given back to as if others had come.
local LONG = 16384 -- bytes
local function as_told(value)
  value = as_stored(value)
  return #value > LONG and '#' .. redis.sha1hex(value) or value
end
local function is_told_in_full(state) return string.sub(state, 1, 1) ~= '#' end

-- take_back undoes a charge of n hits that led from one state to another. It answers whether all is as if it had never
-- been, the state, and for how long that matters, nil if it was not changed. Where others came meanwhile, it gives back
-- what is left of the charge: all of it if the counter would have mattered without it, too; else no more than still
-- shows, so that what has leaked away, or went with its window, is not given back once more.
local function take_back(key, policy, n, before, after)
  reading = key
  local function step(of, cost, charge) return policy.step(policy, of, now, cost, charge, policy.denied) end
  if policy.step ~= steps[REDIS_CELL] and is_told_in_full(before) then
    local old = before ~= '' and before
    local _, _, _, left, _, fresh, _, linger = step(old, 0, LOOK)
    if as_told(state[key]) == after then
      return true, old, max(1, fresh + (linger or 0)) -- an expiry of 0 is none
    end
    if n > 0 and fresh + min(0, linger or 0) == 0 and is_told_in_full(after) then
      local _, _, _, left_after = step(after ~= '' and after, 0, LOOK)
      n = max(0, min(n, left - left_after))
    end
  end
  local changed, new, _, _, _, fresh, _, linger = step(state[key], -max(0, n), TAKE_OR_PENALTY)
  if not changed then return false end
  return false, new, fresh + (linger or 0)
end

-- decider makes what decides a request of several hits, or of one that is not simply enforced. A call without such a
-- request does without its tables and functions, which are 2 us.
local function decider()
  -- A request changes state and expires as it is decided; roll_back undoes that, newest first, when it is denied or
  -- cannot be decided.
  local undo, undo_key, undo_state, undo_expires = 0, {}, {}, {}
  local function change(key, new, after)
    undo = undo + 1
    undo_key[undo], undo_state[undo], undo_expires[undo] = key, state[key], expires[key] or false
    state[key], expires[key] = new, after
  end
  local function roll_back()
    for i = undo, 1, -1 do
      local key = undo_key[i]
      state[key], expires[key] = undo_state[i], undo_expires[i] or nil
    end
    undo = 0
    put_back()
  end

  -- The hits of the request that is decided, and what is answered to each. These tables, and not one for each hit, are
  -- what makes a hit of such a request cost 4.4 us instead of 5.4.
  local key_of, policy_of, mode_of, group_of, cost_of = {}, {}, {}, {}, {}
  local allowed, left, retry, reset, wait = {}, {}, {}, {}, {}
  local before_of, after_of = {}, {} -- of hits of mode UNDO
  local settled = {} -- keys whose hits that are charged in any case are charged already

  -- run decides hit i.
  local function run(i, charge)
    local key, policy = key_of[i], policy_of[i]
    if charge == TAKE_OR_PENALTY and settled[key] then charge = LOOK end
    reading = key
    local changed, new, fits, remains, again, fresh, waits, linger =
      policy.step(policy, state[key], now, cost_of[i], charge, policy.denied)
    if changed then change(key, new, fresh + (linger or 0)) end
    return fits, remains, again, fresh, waits or 0
  end

  -- quotas_over mirrors limiter.QuotaDenies: there are quotas, and all of them are over.
  local function quotas_over(count)
    local quotas, over = {}, {}
    for i = 1, count do
      if mode_of[i] == QUOTA then
        quotas[group_of[i]] = true
        if not allowed[i] then over[group_of[i]] = true end
      end
    end
    for group in pairs(quotas) do
      if not over[group] then return false end
    end
    return next(quotas) ~= nil
  end

  -- deny mirrors chargeDenied: it starts again, and charges what a denied request is charged.
  local function deny(count, quota_denies)
    roll_back()
    local together = {} -- what the hits of a key cost, up to the one that is decided
    for i = 1, count do
      local key = key_of[i]
      together[key] = (together[key] or 0) + max(0, cost_of[i])
      local charge = LOOK
      if mode_of[i] == SHADOW or cost_of[i] < 0 then
        charge = TAKE_OR_PENALTY
      elseif not allowed[i] and (mode_of[i] == ENFORCE or (mode_of[i] == QUOTA and quota_denies)) then
        charge = PENALTY
      end
      local _, again
      _, left[i], again, reset[i], wait[i] = run(i, charge)
      if not allowed[i] and retry[i] ~= NEVER then
        local never = again == NEVER or together[key] > policy_of[i].largest
        retry[i] = never and NEVER or max(retry[i], again)
      end
    end
  end

  -- spend charges the quotas that an admitted request passes although they are over: limiter.Spends.
  local function spend(count)
    for i = 1, count do
      if mode_of[i] == QUOTA and not allowed[i] then
        local fits, again
        fits, left[i], again, reset[i] = run(i, SPEND)
        if not fits then retry[i] = again end
      end
    end
  end

  local function undone(i)
    local key = key_of[i]
    local as_if_never, new, matters = take_back(key, policy_of[i], cost_of[i], before_of[i], after_of[i])
    if matters then change(key, new, matters) end
    if not as_if_never then settled[key] = true end
    return true, 0, 0, 0, 0
  end

  local function charge_of(mode)
    if mode == SHADOW then return TAKE_OR_PENALTY end
    if mode >= TRY then return mode - TRY end
    return mode >= PAY and mode - PAY or TAKE_IF_FITS
  end

  -- decide mirrors limiter.Decide for a request of so many hits.
  local function decide(count)
    local enforced, quota = true, false
    for i = 1, count do
      local mode = mode_of[i]
      if mode == UNDO then
        allowed[i], left[i], retry[i], reset[i], wait[i] = undone(i)
      else
        allowed[i], left[i], retry[i], reset[i], wait[i] = run(i, charge_of(mode))
      end
      if mode == ENFORCE then
        enforced = enforced and allowed[i]
      elseif mode == QUOTA then
        quota = true
      end
    end
    local quota_denies = quota and quotas_over(count)
    local denied = quota_denies or not enforced
    if denied then
      deny(count, quota_denies)
    elseif quota then
      spend(count)
    end
    for i = 1, count do -- of a denied request, what its hits charge is left out: then more is told than needed
      local mode = mode_of[i]
      if mode == UNDO then
        tally(key_of[i], -max(0, cost_of[i]))
      elseif cost_of[i] < 0 or (allowed[i] and not denied and (mode < PAY or mode >= TRY)) then
        tally(key_of[i], cost_of[i])
      end
    end
  end

  local next_undo = 1 -- in ARGV[4]
  -- hit is how many hits were before the request's; of its first one policy, mode, group and n are read already.
  return function(request, hit, count, policy, mode, group, n, at)
    for i = 1, count do
      if i > 1 then policy, mode, group, n, at = struct.unpack(HIT, ARGV[3], at) end
      key_of[i], policy_of[i], mode_of[i], group_of[i], cost_of[i] = KEYS[hit + i], policies[policy], mode, group, n
      if mode == UNDO then before_of[i], after_of[i], next_undo = struct.unpack('<I4c0I4c0', ARGV[4], next_undo) end
    end
    undo, noted, settled, alone = 0, {}, {}, false
    local told, before = #tried, {}
    if mode_of[1] >= TRY and mode_of[1] < UNDO then
      for i = 1, count do before[i] = as_told(state[key_of[i]]) end
    end
    local decided, why = pcall(decide, count)
    if not decided then
      roll_back()
      failed(request, why)
    end
    for i = 1, #before do
      tried[told + 2 * i - 1], tried[told + 2 * i] = before[i], as_told(state[key_of[i]])
    end
    for i = 1, count do
      answers[hit + i] = NO_ANSWER
      if decided then answers[hit + i] = struct.pack(ANSWER, allowed[i] and 1 or 0, left[i], retry[i], reset[i], wait[i]) end
    end
    return at
  end
end

local several
local at, hit, request = 1, 0, 0
while hit < #KEYS do
  request = request + 1
  local count, policy, mode, group, n
  count, policy, mode, group, n, at = struct.unpack(REQUEST, ARGV[3], at)
  if count == 1 and mode == ENFORCE then
    alone = true
    local decided, answer = pcall(single, KEYS[hit + 1], policies[policy], n)
    if not decided then failed(request, answer) end
    answers[hit + 1] = decided and answer or NO_ANSWER
  else
    several = several or decider()
    at = several(request, hit, count, policy, mode, group, n, at)
  end
  hit = hit + count
end

for key, after in pairs(expires) do
  if state[key] then
    -- The expiry only collects garbage: it is never before the state stops to matter.
    redis.call('SET', key, state[key], 'PX', ceil(after / 1000) + spare)
  elseif found[key] then
    redis.call('DEL', key)
  end
end

-- A state that cannot be read goes, also if nothing was charged.
local restarts = {}
for key, how in pairs(restarted) do
  if how == 'dropped' and state[key] and state[key] == found[key] then redis.call('DEL', key) end
  restarts[#restarts + 1] = key
end

if ARGV[2] ~= '' then
  for key, net in pairs(refunded) do
    if net > 0 then redis.pcall('PUBLISH', ARGV[2], key) end -- who may not publish still counts
  end
end

if #failures == 0 and #tried == 0 and #restarts == 0 then return table.concat(answers) end
return {table.concat(answers), failures, tried, restarts}
