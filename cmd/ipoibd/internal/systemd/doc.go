// Package systemd tells systemd how a service is doing (sd_notify(3), Type=notify). It does
// nothing if systemd has not started the process, that is, without NOTIFY_SOCKET.
//
// systemd learns that the service is ready once it has answered for the first time, a line of
// status when that changes, and that the service is stopping. If the unit has WatchdogSec=, the
// service must answer again within that time; otherwise systemd kills and restarts it. The
// answers come from the goroutines that do the work, so a daemon whose timers still run but
// whose work hangs is restarted too. What does not answer is logged, because it is the reason
// for the kill.
package systemd
