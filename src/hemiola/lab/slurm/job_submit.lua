-- Holds the jobs of the partitions that Hemiola manages, from submission until Hemiola has placed them.
-- Install it beside slurm.conf, with JobSubmitPlugins=lua there, and run: scontrol reconfigure

-- The partitions that Hemiola manages.
local managed = { ["hemiola"] = true }
-- The user ids that may release a held job: root, and the user that Hemiola runs as (the SlurmUser).
local operators = { [0] = true }

-- Whether users may name nodes, at submission or later (--nodelist, --exclude, ReqNodeList, ExcNodeList). A job that
-- names nodes leaves Hemiola no choice: it is Slurm's own scheduler's. With false, such requests are refused, and a job
-- comes from another partition only with: scontrol update jobid=N partition=hemiola ReqNodeList= ExcNodeList=
local may_name_nodes = true

-- What `hemiola serve --alive FILE` writes while it acts, and after how many seconds of silence jobs are no longer
-- held; when it is stopped, it writes there what is no number. The controller reads a few bytes per submission; "" holds whether Hemiola lives or not.
local alive_file, silent_s = "/run/hemiola/alive", 60

-- Written when a job comes, for `hemiola serve --wake FILE` to look at once instead of when it is time; "" for nothing.
local wake_file = "/run/hemiola/wake"

local function is_alive()
  if alive_file == "" then return true end
  local file = io.open(alive_file, "r")
  if file == nil then return false end
  local said = tonumber(file:read("*l") or "")
  file:close()
  return said ~= nil and os.time() - said < silent_s
end

local function wake()
  if wake_file == "" then return end
  local file = io.open(wake_file, "w")
  if file == nil then return end  -- then it looks when it is time
  file:write("1")
  file:close()
end

-- Whether a job that asks for "a,b" (or, with nil, for the default partition) could run in a managed one.
local function is_managed(wanted, partitions)
  if wanted == nil then
    for name, partition in pairs(partitions) do
      if partition.flag_default == 1 then wanted = name end
    end
  end
  for name in string.gmatch(wanted or "", "[^,]+") do
    if managed[name] then return true end
  end
  return false
end

-- What is written here before a job's comment, with a blank behind it. To Slurm a hold of a job's own user looks like
-- Hemiola's, so it is marked; and so is that one which a job takes with it out of a managed partition is not its user's.
local users_hold, taken_along = "hemiola:held-by-its-user", "hemiola:held-as-it-left"

local function sign_of(comment)
  return string.match(comment or "", "^hemiola:%S+") or ""
end

-- A comment without what is written before it here. Users may write it, too; then it is left out, however often.
local function bare(comment)
  comment = comment or ""
  while sign_of(comment) ~= "" do comment = string.gsub(comment, "^hemiola:%S+%s*", "") end
  return comment
end

local function signed(sign, comment)
  return sign == "" and bare(comment) or sign .. " " .. bare(comment)
end

-- Slurm goes through an array with one request, in which what was written for one of its jobs stands for the next.
local request = { seen = {} }

-- What was asked for, as it was before anything was written into it here.
local function asked_in(job, record, uid)
  local array = record.array_job_id or 0
  local same = array ~= 0 and array == request.array and uid == request.uid and os.time() - request.begun_s <= 1
    and not request.seen[record.job_id] and job.priority == request.wrote_priority
    and (job.comment == nil or job.comment == request.wrote_comment)
  if not same then
    request = { array = array, uid = uid, begun_s = os.time(), seen = {},
                priority = job.priority, comment = job.comment }
  end
  request.seen[record.job_id] = true
  return request
end

-- scontrol says no more than that it is denied; why stands in the controller's log.
local function refuse(why)
  slurm.log_info("%s", "Hemiola refuses a request: " .. why)
  return slurm.ESLURM_ACCESS_DENIED or slurm.ERROR
end

-- Whether it is to run in a reservation, whose nodes are not Hemiola's to give; Slurm's own record has another word.
local function is_reserved(job)
  return (job.reservation or job.resv_name or "") ~= ""
end

local function names_nodes(job)
  return (job.req_nodes or "") ~= "" or (job.exc_nodes or "") ~= ""
end

-- Slurm itself holds a job that it could not launch again and again (MaxBatchRequeue), one that ended in a special exit
-- (RequeueExitHold, requeuehold state=SpecialExit), and one whose reservation is gone. Its user may release it: Hemiola
-- is told to look, and holds it then.
local slurms_holds = { 2 ^ 11, 2 ^ 12, 2 ^ 21 }

local function is_slurms_to_hold(record)
  for _, flag in ipairs(slurms_holds) do
    if (record.job_state or 0) % (2 * flag) >= flag then return true end
  end
  return false
end

-- Whether it is in the queue: a hold of one that runs comes to nothing.
local function is_pending(record)
  return (record.job_state or 0) % 256 == 0
end

-- What decides where, when and whether a job starts, and what stands there where it is not to change.
local starting = {
  req_nodes = {}, exc_nodes = {}, features = {}, dependency = {}, reservation = {}, gres = {}, tres_per_job = {},
  tres_per_node = {}, tres_per_socket = {}, tres_per_task = {}, begin_time = { 0, slurm.NO_VAL },
  min_nodes = { slurm.NO_VAL }, max_nodes = { slurm.NO_VAL }, num_tasks = { slurm.NO_VAL }, min_cpus = { slurm.NO_VAL },
  shared = { 65534 },
}

local function changes_start(job)
  for name, nothing in pairs(starting) do
    local value = job[name]
    if value ~= nil and value ~= nothing[1] and value ~= nothing[2] then return true end
  end
  return false
end

function slurm_job_submit(job, partitions, uid)
  if sign_of(job.comment) ~= "" then
    job.comment = bare(job.comment)
    slurm.log_user("Hemiola: words that begin with hemiola: are its own, and were left out of the comment")
  end
  if sign_of(job.admin_comment) ~= "" and not operators[uid] then job.admin_comment = "" end
  if not is_managed(job.partition, partitions) then return slurm.SUCCESS end
  local ours = is_alive() and not is_reserved(job)
  if ours and names_nodes(job) and not may_name_nodes then
    slurm.log_user("Hemiola: jobs of this partition may not name nodes (--nodelist, --exclude)")
    return refuse("a job may not name nodes")
  end
  if job.priority == 0 then job.comment = signed(users_hold, job.comment) end
  if not ours or names_nodes(job) then return slurm.SUCCESS end
  job.priority = 0
  wake()
  return slurm.SUCCESS
end

-- What stands before the comment from now on. A hold is its user's if that user asks for it, or comes with it from a
-- partition where nobody else holds jobs.
local function next_sign(asked, record, uid, was_managed, is_now)
  local sign, held, is_users = sign_of(record.comment), record.priority == 0, not operators[uid] and is_pending(record)
  if not was_managed and not is_now then return asked.priority == slurm.NO_VAL and sign or "" end
  if asked.priority == 0 and is_users then return users_hold end
  if asked.priority ~= slurm.NO_VAL and asked.priority ~= 0 then return "" end
  if was_managed and is_now then return sign end
  if was_managed then return held and (sign == users_hold and sign or taken_along) or "" end
  return held and is_users and sign ~= taken_along and users_hold or ""
end

-- Writes the comment anew where it, or what stands before it, changes.
local function sign_anew(job, asked, record, sign)
  if job.comment == nil and sign == sign_of(record.comment) then return end
  local comment = signed(sign, asked.comment or record.comment)
  job.comment = (comment ~= "" or asked.comment == "") and comment or "hemiola"  -- an empty one would change nothing
end

-- Whether an ordinary user may change a job so, and what Hemiola's hold of it becomes.
local function answer(job, asked, record, partitions, was_managed)
  local held, lifts = record.priority == 0, asked.priority ~= slurm.NO_VAL and asked.priority ~= 0
  local own_hold, moves_in = sign_of(record.comment) == users_hold, not was_managed
  if job.reservation ~= "" and is_reserved(record) then return slurm.SUCCESS end
  local alive = is_alive()
  if alive and not may_name_nodes then
    if names_nodes(job) then return refuse("job " .. record.job_id .. " may not name nodes") end
    if moves_in and (job.req_nodes == nil or job.exc_nodes == nil) then  -- what it named before cannot be seen here
      return refuse("job " .. record.job_id .. " comes only with ReqNodeList= ExcNodeList=")
    end
  end
  local holds_anew = alive and is_pending(record) and not is_slurms_to_hold(record) and not is_reserved(job)
    and (moves_in or changes_start(job) or (own_hold and lifts))
  if job.nice ~= slurm.NO_VAL and (held or holds_anew) then
    return refuse("a nice value would lift the hold of job " .. record.job_id .. ", and orders nothing here")
  end
  if lifts and (moves_in or (held and not own_hold)) and not is_slurms_to_hold(record) then
    return refuse("job " .. record.job_id .. " waits for Hemiola to place it, and is not its user's to release")
  end
  if lifts and alive then wake() end
  if holds_anew and asked.priority ~= 0 then
    if lifts or not held then job.priority = 0 end
    wake()
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  local asked = asked_in(job, record, uid)
  local was_managed = is_managed(record.partition, partitions)
  local is_now = is_managed(job.partition or record.partition, partitions)
  local done = slurm.SUCCESS
  if is_now and not operators[uid] then done = answer(job, asked, record, partitions, was_managed) end
  if done == slurm.SUCCESS then
    sign_anew(job, asked, record, next_sign(asked, record, uid, was_managed, is_now))
  end
  request.wrote_priority, request.wrote_comment = job.priority, job.comment
  return done
end

return slurm.SUCCESS
