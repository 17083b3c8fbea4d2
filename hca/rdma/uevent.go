package rdma

import "strings"

// subsystems are the classes of a device and of its verbs interface.
var subsystems = []string{"infiniband", "infiniband_verbs"}

// maxUevent bounds a message in bytes: the kernel's texts have at most 2048
// (UEVENT_BUFFER_SIZE, include/linux/kobject.h), and the line before them.
const maxUevent = 8192

// subsystemOf returns the subsystem of a kernel event of a device (kobject_uevent_env,
// lib/kobject_uevent.c), or "" if it names none. An event is ACTION@DEVPATH followed by
// KEY=VALUE pairs, each terminated by a zero byte. subsystemOf returns false for anything
// else, such as udev's own messages.
func subsystemOf(msg []byte) (subsystem string, ok bool) {
	if len(msg) == 0 || len(msg) > maxUevent || msg[len(msg)-1] != 0 {
		return "", false
	}
	fields := strings.Split(string(msg[:len(msg)-1]), "\x00")
	action, path, _ := strings.Cut(fields[0], "@")
	if action == "" || !strings.HasPrefix(path, "/") {
		return "", false
	}
	for _, f := range fields[1:] {
		if key, value, _ := strings.Cut(f, "="); key == "SUBSYSTEM" {
			subsystem = value
		}
	}
	return subsystem, true
}
