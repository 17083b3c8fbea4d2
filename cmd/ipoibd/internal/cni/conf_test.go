package cni

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"ipoibd/cmd/ipoibd/internal/config"
)

func TestParseConf(t *testing.T) {
	c, err := parseConf([]byte(`{"cniVersion": "1.1.0", "name": "fabric", "type": "ipoibd", "device": "soft", "pkey": "0x8001", "mtu": 1300,
		"ipam": {"type": "static"}, "args": {"unknown": 1}, "cni.dev/valid-attachments": [{"containerID": "x", "ifname": "net1"}]}`))
	if err != nil || c.Control != config.DefaultControl || c.Device != "soft" || c.PKey != "0x8001" || c.MTU != 1300 || c.IPAM.Type != "static" || len(c.ValidAttachments) != 1 {
		t.Errorf("%+v, %v", c, err)
	}
	for text, code := range map[string]uint{
		``: types.ErrDecodingFailure, `[]`: types.ErrDecodingFailure, `{"mtu": "x"}`: types.ErrDecodingFailure, `{"pkey": 5}`: types.ErrDecodingFailure,
		`{"mtu": 1e99}`:             types.ErrDecodingFailure,
		`{"control": "run/x.sock"}`: types.ErrInvalidNetworkConfig, `{"control": "/run\u0000"}`: types.ErrInvalidNetworkConfig,
		`{"control": "/` + strings.Repeat("x", maxControl) + `"}`: types.ErrInvalidNetworkConfig,
		`{"x": "` + strings.Repeat("x", maxConf) + `"}`:           types.ErrInvalidNetworkConfig,
		strings.Repeat(`{"ipam":`, 20000):                         types.ErrDecodingFailure,
	} {
		_, err := parseConf([]byte(text))
		if e, ok := errors.AsType[*types.Error](err); !ok || e.Code != code || len(err.Error()) > 1000 {
			t.Errorf("%.40s: %v, want code %d", text, err, code)
		}
	}
}

// The configuration in docs/kubernetes is one that runtimes and the plugin accept.
func TestShippedConfiguration(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/kubernetes/cni/10-ipoibd.conflist")
	if err != nil {
		t.Fatal(err)
	}
	list, err := libcni.NetworkConfFromBytes(text)
	if err != nil || len(list.Plugins) != 1 || list.Plugins[0].Network.Type != PluginName {
		t.Fatalf("%+v, %v", list, err)
	}
	if c, err := parseConf(list.Plugins[0].Bytes); err != nil || c.Control != config.DefaultControl || c.IPAM.Type == "" {
		t.Errorf("%+v, %v", c, err)
	}
}
