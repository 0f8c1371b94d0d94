-- The batch: its counters, plans and policies, its answer, and the requests whose hits all fit, as most do.

-- found[k] is what KEYS[k] held, state[k] its newest state; both are false where there is none. after[k] is set where
-- the state changed: how many microseconds it matters, or KEPT.
local state, after = {}, {}
if #KEYS <= 1000 then -- unpack has a bound
  found = found or call('MGET', unpack(KEYS))
  state = {unpack(found)}
else
  found = {}
  for from = 1, #KEYS, 1000 do
    for i, v in ipairs(call('MGET', unpack(KEYS, from, min(from + 999, #KEYS)))) do
      found[from + i - 1], state[from + i - 1] = v, v
    end
  end
end

local function change(k, new, lasts)
  state[k] = new
  if lasts ~= KEPT or not after[k] then after[k] = lasts end
end

local policies = {}
local function policy_at(i)
  local policy = policies[i]
  if not policy then
    local count = #ARGV[i] / 8
    policy = {number = 0, denied = 0, largest = 0, quick = false, unpack_from('<' .. rep('d', count), ARGV[i])}
    policy.number, policy.denied, policy.largest = policy[count - 2], policy[count - 1], policy[count]
    local decides = quick[policy.number]
    policy.quick = decides and decides(unpack(policy))
    policies[i] = policy
  end
  return policy
end

-- A plan has four values for each hit: its policy, mode, group and cost. is_plain says that all hits are enforced and
-- cost something, is_quick that their policies have a quick function, too.
local plans = {}
local function plan_at(i)
  local text, at, is_plain, is_quick = ARGV[i], 1, true, true
  local plan = {count = #text / 32, is_plain = false, is_quick = false, 0, 0, 0, 0} -- room for the first hit
  for j = 1, #text / 8, 4 do
    local policy, mode, group, n
    policy, mode, group, n, at = unpack_from('<dddd', text, at)
    policy = policy_at(policy)
    plan[j], plan[j + 1], plan[j + 2], plan[j + 3] = policy, mode, group, n
    is_plain = is_plain and mode == ENFORCE and n > 0
    is_quick = is_quick and policy.quick
  end
  plan.is_plain, plan.is_quick = is_plain, is_plain and is_quick
  plans[i] = plan
  return plan
end

-- place_of[h] is the index in KEYS of the counter of hit h of the batch; nil if that is h.
local place_of
if ARGV[4] ~= '' then
  place_of = {}
  for h = 1, #ARGV[4] / 8 do place_of[h] = unpack_from('<d', ARGV[4], 8 * h - 7) end
end

local results, size = {0, 0, 0, 0, 0, 0, 0, 0}, 0 -- room for four hits
local function answer(fits, left, retry, reset, wait)
  if fits and retry == 0 and wait == 0 then
    results[size + 1], results[size + 2] = left, reset
    size = size + 2
  else
    results[size + 1], results[size + 2] = fits and ADMITTED or DENIED, left
    results[size + 3], results[size + 4], results[size + 5] = retry, reset, wait
    size = size + 5
  end
end

-- refunded[k] is what the batch refunds less what it charges afterwards. Where that is not above 0, as when a
-- process exchanges leased permits, nothing passes that could not before, and no refund is published.
local refunded = {}
local function tally(k, n)
  if n < 0 then
    refunded[k] = (refunded[k] or 0) - n
  elseif refunded[k] then
    refunded[k] = refunded[k] - n
  end
end

-- decide_quickly decides a request of hits on different counters if its plan is quick and all of them fit. It changes
-- nothing before it knows that, so it has nothing to undo. It returns whether it has decided.
local next_state, lasts, asked = {0, 0, 0, 0}, {0, 0, 0, 0}, {} -- room for four hits
local function decide_quickly(plan, first, request)
  local count, j, at = plan.count, 1, size
  for i = 1, count do
    local k = first + i - 1
    if place_of then
      k = place_of[k]
      if asked[k] == request then return false end
      asked[k] = request
    end
    local new, left, reset, keeps = plan[j].quick(state[k], plan[j + 3])
    if not new then return false end
    next_state[i], lasts[i], results[at + 1], results[at + 2] = new, keeps, left, reset
    j, at = j + 4, at + 2
  end
  size = at
  for i = 1, count do
    local k, keeps = first + i - 1, lasts[i]
    if place_of then k = place_of[k] end
    state[k] = next_state[i]
    if keeps ~= KEPT or not after[k] then after[k] = keeps end -- change, without a call
    if refunded[k] then tally(k, plan[4 * i]) end
  end
  return true
end

local failures, restarted, cuts, has_charges = {}, {}, {}, false
