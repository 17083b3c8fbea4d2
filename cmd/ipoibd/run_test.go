package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ipoibd/cmd/ipoibd/internal/config"
)

// configure parses flags of run and returns the configuration that they make.
func configure(args ...string) (*config.Config, error) {
	f := runFlags{device: config.NewDevice(), iface: config.NewInterface()}
	cmd := runCommand()
	cmd.ResetFlags()
	f.bind(cmd.Flags())
	if err := cmd.ParseFlags(args); err != nil {
		return nil, err
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

func TestFlagMistakes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("devices: [{name: soft}]\ninterfaces: [{name: ib0}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"--pkey: ":                     {"--pkey", "zero"},
		"--name and --config exclude":  {"--name", "ib1", "--config", file},
		"is not an interface's name":   {"--name", "a b"},
		"outside of 68 to 4092":        {"--mtu", "9000"},
		"needs peers":                  {"--known-peers-only"},
		"read configuration":           {"--config", file + "x"},
		"neither an address nor a DNS": {"--peer", "10.0.0.300"},
	} {
		if _, err := configure(args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	if _, err := configure("--config", file, "--control", "/y"); err != nil {
		t.Errorf("file and --control: %v", err)
	}
}

func TestLoggerFlags(t *testing.T) {
	for _, c := range []struct {
		level, format string
		ok            bool
	}{{"info", "text", true}, {"debug", "json", true}, {"loud", "text", false}, {"info", "xml", false}} {
		if _, err := newLogger(c.level, c.format); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestVersionAndUnknownCommand(t *testing.T) {
	var out bytes.Buffer
	root := rootCommand()
	root.SetOut(&out)
	root.SetArgs([]string{"version"})
	if err := root.Execute(); err != nil || out.String() != version+"\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	root.SetArgs([]string{"fly"})
	if err := root.Execute(); err == nil {
		t.Error("no error for an unknown command")
	}
}
