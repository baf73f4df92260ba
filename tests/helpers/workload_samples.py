"""One small, sound file per format, written for the tests after each format's public description."""

from __future__ import annotations

NATIVE_CSV = """\
id,submit_s,gpus,duration_s,model,queue,hosts,gpus_min,gpus_max
a,10,8,3600,gpt2,train,2,4,16
b,2.5,1,0,,,,,
"""

NATIVE_JSON = """\
{"schema": "hemiola.workload/1", "name": "two", "notes": ["made by hand"], "jobs": [
  {"id": "a", "submit_s": 10, "gpus": 8, "duration_s": 3600, "model": "gpt2", "hosts": 2, "gpus_min": 4, "gpus_max": 16},
  {"id": "b", "submit_s": 2.5, "gpus": 1, "duration_s": 0}
]}
"""

SLURM = """\
JobID|User|Partition|Submit|Start|End|State|AllocTRES|NodeList|Timelimit|Comment
100|ann|gpu|2024-01-01T00:00:10|2024-01-01T00:01:00|2024-01-01T01:01:00|COMPLETED|billing=64,cpu=64,gres/gpu:a100=16,gres/gpu=16,mem=1T,node=2|n[07-08]|1-00:00:00|model=gpt2
100.batch||||2024-01-01T00:01:00|2024-01-01T01:01:00|COMPLETED|cpu=64|n07||
101|bob|cpu|2024-01-01T00:00:20|2024-01-01T00:01:00|2024-01-01T00:02:00|COMPLETED|cpu=4,mem=4G|c1|UNLIMITED|
102|bob|gpu|2024-01-01T00:00:30|None|2024-01-01T00:00:40|CANCELLED by 1000||None assigned|10:00|
103_4|bob|gpu|2024-01-01T00:00:00|2024-01-01T00:00:05|2024-01-01T00:00:45|CANCELLED by 1000|gres/gpu:a100=4|n1|90|
104|bob|gpu|2024-01-01T00:00:50|2024-01-01T00:00:55|Unknown|RUNNING|gres/gpu=1|n1|90|
"""

SWF = """\
; Version: 2.2
; MaxProcs: 128
1 0 10 3600 8 -1 -1 8 7200 -1 1 3 1 -1 2 -1 -1 -1
  2 5 -1 60 -1 -1 -1 4 -1 -1 0 4 1 -1 -1 -1 -1 -1
3 6 5 -1 -1 -1 -1 4 -1 -1 5 4 1 -1 -1 -1 -1 -1
4 7 5 10 4 -1 -1 4 -1 -1 2 4 1 -1 -1 -1 -1 -1
"""

PHILLY_JSON = """\
[
 {"status": "Pass", "vc": "ee9e8c", "jobid": "application_1", "user": "ce2f4c",
  "submitted_time": "2017-10-07 01:11:39", "attempts": [
   {"start_time": "2017-10-07 01:12:09", "end_time": "2017-10-07 01:13:23",
    "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}, {"ip": "m48", "gpus": ["gpu0"]}]},
   {"start_time": "2017-10-07 01:13:30", "end_time": "2017-10-07 02:13:30",
    "detail": [{"ip": "m412", "gpus": ["gpu0"]}]}]},
 {"status": "Killed", "vc": "ee9e8c", "jobid": "application_2", "user": "ce2f4c",
  "submitted_time": "2017-10-07 01:11:00", "attempts": [
   {"start_time": "2017-10-07 01:12:00", "end_time": "2017-10-07 01:12:00",
    "detail": [{"ip": "m1", "gpus": ["gpu0"]}]}]},
 {"status": "Killed", "vc": "x", "jobid": "application_3", "user": "u", "submitted_time": "2017-10-07 01:11:00",
  "attempts": []},
 {"status": "Pass", "vc": "x", "jobid": "application_4", "user": "u", "submitted_time": "2017-10-07 01:11:00",
  "attempts": [{"start_time": "2017-10-07 01:12:00", "end_time": null, "detail": []}]},
 {"status": "Pass", "vc": "x", "jobid": "application_5", "user": "u", "submitted_time": "2017-10-07 01:11:00",
  "attempts": [{"start_time": "None", "end_time": "2017-10-07 01:12:00", "detail": []}]},
 {"status": "Pass", "vc": "x", "jobid": "application_6", "user": "u", "submitted_time": "2017-10-07 01:11:00",
  "attempts": [{"start_time": "2017-10-07 01:11:00", "end_time": "2017-10-07 01:12:00", "detail": []}]}
]
"""

PHILLY_CSV = """\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:13:03,2951.0,2,5902.0,6214e9
"""

PHILLY_SLICE = """\
timestamp,submit,duration,num_gpus,cluster
2017-10-09 00:01:56,0,66.0,1,11cb48
2017-10-09 00:11:57,601,66.0,8,11cb48
"""

HELIOS = """\
job_id,user,vc,jobname,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1425511,uXBbc,vcJkd,j1,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0
1425512,uVMrF,vchbv,j2,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:37,2020-06-09 18:45:46,249,10
1425513,uzqls,vcpDC,j3,0,1,1,CANCELLED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-17 14:15:21,675233,0
"""

ACME_SEREN = """\
job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
5778432,u5907,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,2023-03-01 00:20:51+08:00,117,32,936.0
5778469,u5907,1,8,128,Pretrain,COMPLETED,2023-03-01 00:23:58+08:00,2023-03-01 00:24:11+08:00,2023-03-01 01:09:04+08:00,2693,13,21544.0
"""

ACME_KALOS = """\
job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,end_time,fail_time,stop_time,duration,queue,gpu_time
dlc1,uf794,8,64,960,1000,100.0,Other,FAILED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,2023-05-17 11:01:16+00:00,2023-05-17 11:01:16+00:00,,18,10.0,1152.0
"""

PAI_TASKS = """\
4f05,tensorflow,1.0,Terminated,1739162.0,1739200.0,600.0,29.3,50.0,MISC
a1,ps,2.0,Terminated,1739100.0,1739400.0,600.0,29.3,,
a1,worker,3.0,Failed,1739110.0,1739300.0,600.0,29.3,100.0,V100
b2,worker,1.0,Running,1739110.0,,600.0,29.3,100.0,V100
c3,worker,1.0,Waiting,,,600.0,29.3,100.0,V100
d4,worker,1.0,Terminated,1.0,2.0,600.0,29.3,,
"""

PAI_JOBS = """\
4b3f,8cb3,58540f,Terminated,4550879.0,4551416.0
"""

PAI_SIMULATOR = """\
job_id,num_gpu,num_cpu,submit_time,num_inst,duration,user,gpu_type,wait_time
7,0.5,6,100,1,38,u1,T4,2
8,8,64,160,2,600,u2,V100,
9,0,4,170,1,5,u2,CPU,
"""

GAVEL = (
    "ResNet-50 (batch size 64)\tpython3 main.py -a resnet50\timage/imagenet\t--num_minibatches\t1\t"
    "2931\t1\t1\t-1.000000\t0\n"
    "LM (batch size 10)\tpython3 main.py\tlm\t--steps\t1\t163129\t2\t1\t-1.000000\t30\n"
)

GAVEL_OLD = (
    "Transformer (batch size 128)\tcd x && python3 train.py\t-step\t1\t544611\t0.000000\t1\n"
    "A3C\tpython3 main.py\t--max-steps\t1\t717577\t3.500000\t1\n"
)

SHOCKWAVE = (
    "LM (batch size 10)\tpython3 main.py\tlm\t--steps\t1\t134583\t1\tgns\t1\t-1.000000\t1418\t0\n"
    "ResNet-18 (batch size 32)\tpython3 main.py\ticf\t--num_steps\t1\t143450\t2\taccordion\t1\t-1.000000\t3338\t55\n"
)

POLLUX = """\
name,time,application,num_replicas,batch_size
cifar10-0,107,cifar10,6,2048
ncf-2,135,ncf,1,32768
"""

MURI = """\
job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,resource_time_0,resource_time_1,resource_time_2,priority
0,8,0,10956,gpt2,4,4788000,91000,437,0.6,419,49,0
1,8,1534000,1463,vgg16,16,313000,28000,214,82,75,66,1
"""

TIRESIAS = """\
job_id,num_gpu,submit_time,iterations,model_name,duration,interval
0,1,0,606,vgg19,164,30
1,8,30,133,vgg11,147,23
2,2,53,157,inception4,127,26
3,2,79,157,inception4,0,1
"""

SAMPLES: dict[str, tuple[str, str]] = {
    "native-csv": ("native-csv", NATIVE_CSV),
    "native-json": ("native-json", NATIVE_JSON),
    "slurm": ("slurm", SLURM),
    "swf": ("swf", SWF),
    "philly-json": ("philly-json", PHILLY_JSON),
    "philly-csv": ("philly-csv", PHILLY_CSV),
    "philly-slice": ("philly-csv", PHILLY_SLICE),
    "helios": ("helios", HELIOS),
    "acme-seren": ("acme", ACME_SEREN),
    "acme-kalos": ("acme", ACME_KALOS),
    "pai-task-table": ("pai-task-table", PAI_TASKS),
    "pai-simulator": ("pai-simulator", PAI_SIMULATOR),
    "gavel": ("gavel", GAVEL),
    "gavel-old": ("gavel-old", GAVEL_OLD),
    "shockwave": ("shockwave", SHOCKWAVE),
    "pollux": ("pollux", POLLUX),
    "muri": ("muri", MURI),
    "tiresias": ("tiresias", TIRESIAS),
}
"""Sample, by its own name: the format it is in, and its text."""
