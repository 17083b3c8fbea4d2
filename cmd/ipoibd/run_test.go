package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"ipoibd/bpf"
	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/sandbox"
)

// configure parses flags of run and returns the configuration that they make.
func configure(args ...string) (*config.Config, error) {
	f := newRunFlags()
	cmd := runCommand()
	cmd.ResetFlags()
	f.bind(cmd)
	if err := cmd.ParseFlags(args); err != nil {
		return nil, flagMistake(cmd, err)
	}
	return f.configuration(cmd.Flags())
}

func TestFlagsMakeOneInterface(t *testing.T) {
	c, err := configure("--name", "ib7", "--underlay", "eth3", "--pkey", "0x8001", "--mtu", "1400",
		"--gid", "10.0.0.1", "--peer", "10.0.0.2", "--peer", "node.example", "--known-peers-only", "--standard-mtu", "--control", "/x")
	if err != nil {
		t.Fatal(err)
	}
	d, f := c.Devices[0], c.Interfaces[0]
	if f.Name != "ib7" || f.PKey != 0x8001 || f.MTU != 1400 || f.GID != "10.0.0.1" || c.Control != "/x" {
		t.Errorf("interface %+v, control %s", f, c.Control)
	}
	if d.Underlay != "eth3" || len(d.PKeys) != 1 || d.PKeys[0] != 0x8001 || len(d.Peers) != 2 || !d.KnownPeersOnly || !d.StandardMTU {
		t.Errorf("device %+v", d)
	}
}

func TestFlagsOfRealHCA(t *testing.T) {
	c, err := configure("--device", "mlx5_0", "--port", "2", "--gid-index", "3", "--pkey", "0x8001", "--reset", "driver")
	if err != nil {
		t.Fatal(err)
	}
	d, f := c.Devices[0], c.Interfaces[0]
	if d.Name != "mlx5_0" || d.HCA != "mlx5_0" || d.Reset != config.ResetDriver || d.PKeys != nil {
		t.Errorf("device %+v", d)
	}
	if f.Device != "mlx5_0" || f.Port != 2 || f.PKey != 0x8001 || f.GIDIndex == nil || *f.GIDIndex != 3 {
		t.Errorf("interface %+v", f)
	}
}

func TestFlagMistakes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("devices: [{name: soft, coordinator: /shared}]\ninterfaces: [{name: ib0}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	many := filepath.Join(t.TempDir(), "many.yaml")
	if err := os.WriteFile(many, []byte("devices: [{name: soft}]\ninterfaces: [{name: ib0}, {name: ib1}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"--pkey: \"zero\" is not a P_Key":                     {"--pkey", "zero"},
		"--mtu: \"abc\" is not a whole number":                {"--mtu", "abc"},
		"--port: \"256\" is not a whole number from 0 to 255": {"--port", "256"},
		"--remove: \"maybe\" is not true or false":            {"--remove=maybe"},
		"--underlay: ib0 is an interface of this daemon":      {"--underlay", "ib0"},
		"--name: " + many + " configures several":             {"--name", "ib1", "--config", many},
		"--address: 10.9.0.1 has no prefix length":            {"--address", "10.9.0.1"},
		"--route: \"10.9.0.1/8\": 10.9.0.1/8 has host bits":   {"--route", "10.9.0.1/8"},
		"changed by flags or the environment: --mtu: 9000":    {"--mtu", "9000", "--config", file},
		"--name: \"a b\" is not":                              {"--name", "a b"},
		"--mtu: 9000 is out of range":                         {"--mtu", "9000"},
		"--known-peers-only: needs":                           {"--known-peers-only"},
		"read configuration":                                  {"--config", file + "x"},
		"--peer: \"10.0.0.300\" is":                           {"--peer", "10.0.0.300"},
		"--gid: \"here\" is not":                              {"--gid", "here"},
		"--underlay: \"a/b\" is not":                          {"--underlay", "a/b"},
		"--control: \"\" is not an absolute":                  {"--control", ""},
		"\"/shared\" is the control":                          {"--config", file, "--control", "/shared"},
		"--metrics-listen: \"9471\" is not":                   {"--metrics-listen", "9471"},
		"--underlay: applies only":                            {"--device", "rxe0", "--underlay", "eth0"},
		"--peer: applies only":                                {"--device", "rxe0", "--peer", "10.0.0.2"},
		"--standard-mtu: applies only":                        {"--device", "rxe0", "--standard-mtu"},
		"--reset: applies only to real HCAs":                  {"--reset", "link"},
		"--reset: \"hard\" is not one of":                     {"--device", "rxe0", "--reset", "hard"},
		"--device: \"a/b\" is neither":                        {"--device", "a/b"},
		"--port: device \"soft\" is the":                      {"--port", "2"},
		"--gid-index: cannot be combined with gid":            {"--gid-index", "1", "--gid", "10.0.0.1"},
		"--gid-index: \"one\" is not a whole number":          {"--gid-index", "one"},

		"--peer: 239.1.1.1 cannot be a peer: it is a multicast": {"--peer", "239.1.1.1"},
		"--peer: fe80::1 cannot be a peer: it is a link-local":  {"--peer", "fe80::1"},
	} {
		if _, err := configure(args...); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "strconv") {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	if _, err := configure("--config", file, "--control", "/y", "--allow-faults"); err != nil {
		t.Errorf("file, --control and --allow-faults: %v", err)
	}
}

// With a file, --metrics-listen replaces its value, even if it configures several interfaces.
func TestMetricsListen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("metrics_listen: :9471\ndevices: [{name: soft}]\ninterfaces: [{name: ib0}, {name: ib1}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, ""},
		{[]string{"--metrics-listen", "127.0.0.1:9472"}, "127.0.0.1:9472"},
		{[]string{"--config", file}, ":9471"},
		{[]string{"--config", file, "--metrics-listen", "localhost:9472"}, "localhost:9472"},
		{[]string{"--config", file, "--metrics-listen="}, ""},
	} {
		got, err := configure(c.args...)
		if err != nil || got.MetricsListen != c.want {
			t.Errorf("%v: %+v, %v; want %q", c.args, got, err, c.want)
		}
	}
}

func TestLoggerFlags(t *testing.T) {
	for _, c := range []struct {
		level, format string
		ok            bool
	}{{"info", "text", true}, {"debug", "json", true}, {"loud", "text", false}, {"info", "xml", false}} {
		if _, err := logFormat(c.level, c.format); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestVersionAndUnknownCommand(t *testing.T) {
	var out bytes.Buffer
	root := rootCommand()
	root.SetOut(&out)
	root.SetArgs([]string{"version"})
	const pattern = `^ipoibd \d+\.\d+\.\d+ \(unknown, go1\.\d+.*, (cgo: verbs|no cgo: software HCA only)\)\n$`
	if err := root.Execute(); err != nil || !regexp.MustCompile(pattern).MatchString(out.String()) {
		t.Errorf("%q, %v", out.String(), err)
	}
	for want, args := range map[string][]string{
		`unknown command "fly"`:           {"fly"},
		"--fast; see 'ipoibd run --help'": {"run", "--fast"},
		"delete takes the name of one":    {"delete"},
		"name of one interface, as in":    {"delete", "ib0", "ib1"},
		`status takes no argument: "ib0"`: {"status", "ib0"},
		`run takes no argument: "true"; if it is the value of --up, write --up=true; see 'ipoibd run --help'`: {"run", "--up", "true"},
	} {
		root.SetArgs(args)
		if err := root.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}

// Scripts can distinguish a mistake of their own from a daemon that does not run or does not
// answer.
func TestExitCodes(t *testing.T) {
	f := newFake()
	f.err = errors.New("device is open")
	path, _ := serve(t, f)
	hung := filepath.Join(t.TempDir(), "hung.sock")
	l, err := net.Listen("unix", hung) // the kernel accepts connections for a process that is stopped
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("interfaces: []"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]int{
		"version":                        0,
		"status --control " + path:       0,
		"recover --control " + path:      exitFailure,
		"delete nope0":                   exitFailure,
		"fly":                            exitUsage,
		"status extra":                   exitUsage,
		"status --fast":                  exitUsage,
		"reset world":                    exitUsage,
		"fault unplug --after -1":        exitUsage,
		"run --mtu abc":                  exitUsage,
		"run --mtu 9000":                 exitUsage,
		"run --log-format xml":           exitUsage,
		"run --config " + file:           exitUsage,
		"status --control " + path + "x": exitNotReady,

		"reset qp --wait --control " + path + "x": exitNotReady,
		"recover --wait=100ms --control " + hung:  exitNotReady,
		"status --control " + hung:                exitNotReady,
		"events --follow --control " + hung:       exitNotReady,
	} {
		root := rootCommand()
		root.SetOut(io.Discard)
		root.SetArgs(strings.Fields(args))
		ctx, cancel := t.Context(), func() {}
		if strings.HasSuffix(args, hung) {
			ctx, cancel = context.WithTimeout(ctx, 200*time.Millisecond)
		}
		if got, err := execute(ctx, root); got != want {
			t.Errorf("%s: exit code %d, %v; want %d", args, got, err, want)
		}
		cancel()
	}
}

// A reload that asks for a fast path gets a reason if the programs were not loaded.
func TestUnloadedFastPathSaysWhy(t *testing.T) {
	l, err := openPrograms(sandbox.Carried{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.fastPath.Gate(bpf.GateSpec{}); !errors.Is(err, bpf.ErrNotLoaded) {
		t.Error(err)
	}
}
