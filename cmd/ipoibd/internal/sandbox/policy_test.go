package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ipoibd/cmd/ipoibd/internal/config"
)

// describe returns what a policy allows beyond reading what it always may read.
func describe(p Policy) string {
	var caps []string
	for _, c := range p.Capabilities {
		caps = append(caps, strings.TrimPrefix(name(c), "CAP_"))
	}
	read := slices.DeleteFunc(slices.Clone(p.Read), func(s string) bool { return slices.Contains(alwaysRead, s) })
	fast := ""
	if p.FastPath {
		fast = " fast path"
	}
	return strings.Join(caps, " ") + fmt.Sprint(" read", read, " write", p.Write, " private", p.Private, " devices", p.Devices, " attributes", p.Attributes, " filters ", p.Filters) + fast
}

// Each feature adds what it needs, and nothing else.
func TestNeeds(t *testing.T) {
	const lean = "interfaces: [{name: ib0, ebpf: false}]\n"
	for _, c := range []struct{ name, file, want string }{
		{
			"least", "devices: [{name: soft}]\n" + lean,
			"NET_ADMIN NET_RAW read[] write[/run/ipoibd] private[] devices[/dev/net] attributes[] filters 0",
		},
		{
			"eBPF, the default", "devices: [{name: soft}]\ninterfaces: [{name: ib0}]\n",
			"NET_ADMIN NET_RAW read[] write[/run/ipoibd] private[] devices[/dev/net] attributes[] filters 17",
		},
		{
			"eBPF on some", "devices: [{name: soft, pkeys: [0xffff, 0x8001, 0x8002]}]\ninterfaces: [{name: ib0, ebpf: false}, {name: ib1, pkey: 0x8001}, {name: ib2, pkey: 0x8002}]\n",
			"NET_ADMIN NET_RAW read[] write[/run/ipoibd] private[] devices[/dev/net] attributes[] filters 18",
		},
		{
			"lending", "lend: true\ndevices: [{name: soft}]\n" + lean,
			"NET_BROADCAST NET_ADMIN NET_RAW SYS_ADMIN read[/run/netns] write[/run/ipoibd] private[] devices[/dev/net] attributes[] filters 272",
		},
		{
			"following", "devices: [{name: soft}]\ninterfaces: [{name: ib0, ebpf: false}, {name: ib1, ebpf: false, follow: true}]\n",
			"NET_BROADCAST NET_ADMIN NET_RAW SYS_ADMIN read[] write[/run/ipoibd] private[] devices[/dev/net] attributes[] filters 0",
		},
		{
			"lanes", "devices: [{name: soft, lanes: 2}]\n" + lean,
			"NET_ADMIN NET_RAW read[] write[/run/ipoibd] private[] devices[/dev/net] attributes[] filters 0",
		},
		{
			"a fast path", "devices: [{name: soft}, {name: fast, underlay: eth1, fast_path: true}]\ninterfaces: [{name: ib0, device: soft, ebpf: false}]\n",
			"NET_ADMIN NET_RAW read[] write[/run/ipoibd] private[] devices[/dev/net] attributes[] filters 0 fast path",
		},
		{
			"peers by address", "devices: [{name: soft, peers: [192.0.2.1, 'fd00::1']}]\n" + lean,
			"NET_ADMIN NET_RAW read[] write[/run/ipoibd] private[] devices[/dev/net] attributes[] filters 0",
		},
		{
			"peers by name", "devices: [{name: soft, peers: [192.0.2.1, host.example]}]\n" + lean,
			"NET_ADMIN NET_RAW read[/etc/gai.conf /etc/host.conf /etc/hosts /etc/nsswitch.conf /etc/resolv.conf] write[/run/ipoibd] private[] devices[/dev/net] attributes[] filters 0",
		},
		{
			"a real HCA", "devices: [{device: mlx5_0}]\n" + lean,
			"NET_ADMIN NET_RAW IPC_LOCK read[/etc/libibverbs.d] write[/run/ipoibd] private[/run/ipoibd/reset] devices[/dev/infiniband /dev/net] attributes[] filters 0",
		},
		{
			"a real HCA of its own", "devices: [{device: mlx5_0, coordinator: ''}]\n" + lean,
			"NET_ADMIN NET_RAW IPC_LOCK read[/etc/libibverbs.d] write[/run/ipoibd] private[] devices[/dev/infiniband /dev/net] attributes[] filters 0",
		},
		{
			"a reset by sysfs", "devices: [{device: mlx5_0, coordinator: '', reset: pci}]\n" + lean,
			"NET_ADMIN NET_RAW IPC_LOCK read[/etc/libibverbs.d] write[/run/ipoibd] private[] devices[/dev/infiniband /dev/net] attributes[/sys/bus/pci/devices/*/reset /sys/bus/pci/drivers /sys/bus/pci/drivers_probe] filters 0",
		},
		{
			"a reset by netlink", "devices: [{device: rxe0, coordinator: '', reset: link}]\n" + lean,
			"NET_ADMIN NET_RAW IPC_LOCK read[/etc/libibverbs.d] write[/run/ipoibd] private[] devices[/dev/infiniband /dev/net] attributes[] filters 0",
		},
		{
			"metrics", "metrics_listen: :9471\ndevices: [{name: soft}]\n" + lean,
			"NET_ADMIN NET_RAW read[] write[/run/ipoibd] private[] devices[/dev/net] attributes[] filters 0",
		},
		{
			"metrics on a port of root's", "metrics_listen: '[::1]:80'\ndevices: [{name: soft}]\n" + lean,
			"NET_BIND_SERVICE NET_ADMIN NET_RAW read[] write[/run/ipoibd] private[] devices[/dev/net] attributes[] filters 0",
		},
		{
			"another control socket", "control: /x/y.sock\ndevices: [{name: soft}]\n" + lean,
			"NET_ADMIN NET_RAW read[] write[/run/ipoibd /x] private[] devices[/dev/net] attributes[] filters 0",
		},
	} {
		cfg, err := config.Parse("c.yaml", []byte(c.file))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if got := describe(Needs(cfg, "")); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.name, got, c.want)
		}
	}
	cfg, err := config.Parse("c.yaml", []byte("devices: [{name: soft}]\n"+lean))
	if err != nil {
		t.Fatal(err)
	}
	for file, read := range map[string]string{"/etc/ipoibd/c.yaml": "[/etc/ipoibd /etc/ipoibd/c.yaml]", "/c.yaml": "[/c.yaml]", "/etc/ipoibd.yaml": "[/etc/ipoibd.yaml]", "/home/x/c.yaml": "[/home/x/c.yaml]"} {
		want := "NET_ADMIN NET_RAW read" + read + " write[/run/ipoibd] private[] devices[/dev/net] attributes[] filters 0"
		if got := describe(Needs(cfg, file)); got != want {
			t.Errorf("file %s:\ngot  %s\nwant %s", file, got, want)
		}
	}
}

// A configuration that needs more than the sandbox allows is refused, and one that needs less is not.
func TestCheck(t *testing.T) {
	const base = "devices: [{name: soft}]\ninterfaces: [{name: ib0, ebpf: false}]\n"
	needs := func(file string) Policy {
		t.Helper()
		cfg, err := config.Parse("c.yaml", []byte(file))
		if err != nil {
			t.Fatal(err)
		}
		return Needs(cfg, "/etc/ipoibd/c.yaml")
	}
	for _, c := range []struct{ name, entered, next, want string }{
		{"the same", base, base, ""},
		{"more addresses", base, strings.Replace(base, "ebpf", "addresses: [10.9.0.1/24], ebpf", 1), ""},
		{"eBPF", base, strings.Replace(base, "false", "true", 1), "to load eBPF programs"},
		{"no more eBPF", strings.Replace(base, "false", "true", 1), base, ""},
		{"a real HCA", base, "devices: [{device: mlx5_0}]\ninterfaces: [{name: ib0, ebpf: false}]\n", "CAP_IPC_LOCK, to read /etc/libibverbs.d, to open devices in /dev/infiniband"},
		{"another real HCA", strings.Replace(base, "name: soft", "device: mlx5_0", 1), strings.Replace(base, "name: soft", "device: mlx5_1", 1), ""},
		{"a reset by sysfs", strings.Replace(base, "name: soft", "device: mlx5_0", 1), strings.Replace(base, "name: soft", "device: mlx5_0, reset: driver", 1), "to write to /sys/bus/pci/devices/*/reset, to write to /sys/bus/pci/drivers, to write to /sys/bus/pci/drivers_probe"},
		{"a directory", strings.Replace(base, "name: soft", "device: mlx5_0", 1), strings.Replace(base, "name: soft", "device: mlx5_0, coordinator: /srv/locks", 1), "to write to /srv/locks"},
		{"a directory below", strings.Replace(base, "name: soft", "device: mlx5_0", 1), strings.Replace(base, "name: soft", "device: mlx5_0, coordinator: /run/ipoibd/locks", 1), ""},
		{"a directory beside", "control: /x/a/s\n" + base, "control: /x/ab/s\n" + base, "to write to /x/ab"},
		{"names", base, strings.Replace(base, "name: soft", "name: soft, peers: [host.example]", 1), "to read /etc/gai.conf, to read /etc/host.conf, to read /etc/hosts, to read /etc/nsswitch.conf, to read /etc/resolv.conf"},
		{"lanes", base, strings.Replace(base, "name: soft", "name: soft, lanes: 4", 1), ""},
	} {
		err := Check(needs(c.entered), needs(c.next))
		if want := "this needs privileges that the daemon dropped at its start (" + c.want + "); restart the daemon"; c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// A directory that other programs use is never opened to the daemon, also not through a link.
func TestSharedDirectories(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	ours := filepath.Join(t.TempDir(), "ipoibd") // a container made it in a directory that was mounted to it
	if err := errors.Join(os.Symlink("/run", link), os.Symlink(t.TempDir(), ours)); err != nil {
		t.Fatal(err)
	}
	if err := (Policy{Write: []string{ours}}).narrow(); err == nil {
		t.Error("a link leads out of ipoibd's directories")
	}
	for _, dir := range []string{
		"/", "/run", "/etc", "/tmp", "/root", "/run/systemd", "/run/user/1000", "/var/lib", "/home/x", "/dev/shm", "/etc/cron.d",
		"/root/.ssh", "/home/x/.kube/cache", "/opt/cni/bin", "/run/containerd", "/run/docker", "/var/lib/docker/overlay2", "/var/lib/kubelet", "/var/spool/cron/crontabs", link,
	} {
		if err := (Policy{Write: []string{dir}}).narrow(); err == nil || !strings.Contains(err.Error(), "/run/ipoibd/NAME") {
			t.Errorf("%s: %v", dir, err)
		}
		if err := (Policy{Private: []string{dir}}).narrow(); err == nil {
			t.Errorf("%s was opened", dir)
		}
		if _, missing := os.Stat(dir); missing == nil && (Policy{Read: []string{dir}}).narrow() == nil {
			t.Errorf("%s was opened to read", dir)
		}
	}
	if err := (Policy{Read: append(slices.Clone(alwaysRead), "/run/netns", "/etc/libibverbs.d", "/proc/1/ns")}).narrow(); err != nil {
		t.Error(err)
	}
	for _, dir := range []string{"/run/ipoibd", "/run/ipoibd-a", "/run/x", "/etc/ipoibd", "/var/lib/x", "/run/user/1000/x", "/home/x/y", "/srv/locks", "/run/docker/netns", "/opt/ipoibd/run"} {
		if err := (Policy{Write: []string{dir}}).narrow(); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
	}
}
