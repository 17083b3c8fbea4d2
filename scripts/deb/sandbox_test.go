package deb

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// granted are the capabilities that the unit grants; those that only the first start needs end with it.
const (
	firstOnly = 1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON
	granted   = firstOnly | 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW
)

// maxExposure is the most that "systemd-analyze security" may find; 10 is a service without a sandbox.
const maxExposure = 2.0

// probes are commands that succeed outside the unit's sandbox, and inside only if allowed.
var probes = []struct {
	name, command string
	allowed       bool
}{
	{"open /dev/net/tun", ": <>/dev/net/tun", true},
	{"open another device", ": <>/dev/fuse", false},
	{"write to /run/ipoibd-probe", ": >/run/ipoibd-probe/file", true},
	{"write to a directory that anyone may write to", ": >/opt/open/file", false},
	{"open a raw disk", "test -e /dev/probe-disk", false},
	{"see processes of root", "test -e /proc/1/status", false},
	{"see /home", "test -e /home/file", false},
	{"run a program", "/bin/true", true},
	{"create a user namespace", "unshare --user true", false},
	{"open a netlink socket", perl("socket(S, %d, %d, 0)", unix.AF_NETLINK, unix.SOCK_RAW), true},
	{"open a vsock socket", perl("socket(S, %d, %d, 0)", unix.AF_VSOCK, unix.SOCK_STREAM), false},
	{"call ptrace", perl("syscall(%d, %d, 0, 0, 0) == 0", unix.SYS_PTRACE, unix.PTRACE_TRACEME), false},
	{"call bpf", perl("syscall(%d, -1, 0, 0) == -1 && $! == %d", unix.SYS_BPF, syscall.EINVAL), true},
	{"call landlock_create_ruleset", perl("syscall(%d, 0, 0, 1) > 0", unix.SYS_LANDLOCK_CREATE_RULESET), true},
	{
		"map memory to write and execute",
		perl("syscall(%d, 0, 4096, %d, %d, -1, 0) != -1", unix.SYS_MMAP, unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON), false,
	},
}

// perl is a command that succeeds if an expression is true.
func perl(expression string, args ...any) string {
	return "perl -e 'exit(!(" + fmt.Sprintf(expression, args...) + "))'"
}

// sandbox: the daemon has its user and only the capabilities that the unit grants, and what its unit
// forbids is forbidden.
func sandbox(m *machine) {
	status := m.run("cat", "/proc/"+m.property("MainPID")+"/status")
	field := func(name string) string { return fieldOf(status, name) }
	for name, want := range map[string]string{
		"Uid": strings.TrimSpace(m.run("id", "-u", "ipoibd")), "NoNewPrivs": "1", "Seccomp": strconv.Itoa(unix.SECCOMP_MODE_FILTER),
	} {
		if got := field(name); got != want {
			m.t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	// Docker 20.10 does not know the newest capabilities, and so grants the machine less.
	limits, err := strconv.ParseUint(fieldOf(m.run("cat", "/proc/1/status"), "CapBnd"), 16, 64)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Logf("capabilities: the unit grants %x, the machine %x", uint64(granted), limits&granted)
	if got, want := field("CapBnd"), fmt.Sprintf("%016x", granted&limits); got != want {
		m.t.Errorf("CapBnd is %s, want %s", got, want)
	}
	for _, set := range []string{"CapEff", "CapPrm", "CapAmb"} { // the daemon may drop some
		if held, err := strconv.ParseUint(field(set), 16, 64); err != nil || held&^(granted&^firstOnly) != 0 || held&(1<<unix.CAP_NET_ADMIN) == 0 {
			m.t.Errorf("%s is %x (%v), the unit grants %x, of which the daemon keeps none of %x", set, held, err, uint64(granted), uint64(firstOnly))
		}
	}
	exposure := lastLine(m.run("systemd-analyze", "security", "--no-pager", "ipoibd.service"))
	m.t.Logf("systemd-analyze security: %s", exposure)
	if level, err := strconv.ParseFloat(strings.Fields(exposure)[len(strings.Fields("→ Overall exposure level for ipoibd.service:"))], 64); err != nil || level > maxExposure {
		m.t.Errorf("%q (%v), want at most %v", exposure, err, maxExposure)
	}

	script := ""
	for i, p := range probes {
		script += fmt.Sprintf("(%s) 2>/dev/null; echo %d $? >>\"$1\"\n", p.command, i)
	}
	m.write("/opt/probe", script)
	m.run("sh", "-c", "mkdir -p -m 777 /opt/open /run/ipoibd-probe; chmod 666 /dev/fuse; mknod /dev/probe-disk b 7 0; : >/home/file")
	m.run("sh", "/opt/probe", "/run/outside")
	m.write("/run/systemd/system/ipoibd-probe.service", probeUnit(m.run("cat", "/lib/systemd/system/ipoibd.service")))
	m.run("systemctl", "daemon-reload")
	m.run("systemctl", "start", "ipoibd-probe.service")
	outside, inside := results(m.run("cat", "/run/outside")), results(m.run("cat", "/run/ipoibd-probe/inside"))
	for i, p := range probes {
		if !outside[i] {
			m.t.Errorf("outside the sandbox, the probe fails to %s", p.name)
		}
		if inside[i] != p.allowed {
			m.t.Errorf("%s inside the sandbox: %v, want %v", p.name, inside[i], p.allowed)
		}
	}
	m.run("sh", "-c", "rm -r /run/systemd/system/ipoibd-probe.service /run/ipoibd-probe; systemctl daemon-reload")
}

// fieldOf returns a field of /proc/PID/status.
func fieldOf(status, name string) string {
	return regexp.MustCompile(`(?m)^` + name + `:\s*(\S+)`).FindStringSubmatch(status)[1]
}

// probeUnit makes the unit run the probes instead of the daemon.
func probeUnit(unit string) string {
	for from, to := range map[string]string{
		`(?m)^Type=.*`: "Type=oneshot", `(?m)^ExecStart=.*`: "ExecStart=/bin/sh /opt/probe /run/ipoibd-probe/inside",
		`(?m)^RuntimeDirectory=.*`: "RuntimeDirectory=ipoibd-probe", `(?m)^(Restart|WatchdogSec)=.*`: "",
	} {
		unit = regexp.MustCompile(from).ReplaceAllString(unit, to)
	}
	return unit
}

// results are the numbers of the probes that succeeded.
func results(text string) map[int]bool {
	out := map[int]bool{}
	for line := range strings.Lines(text) {
		var probe, code int
		if _, err := fmt.Sscan(line, &probe, &code); err == nil {
			out[probe] = code == 0
		}
	}
	return out
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndex(text, "\n")+1:]
}
