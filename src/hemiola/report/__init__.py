"""What people look at: functions of a finished comparison."""
