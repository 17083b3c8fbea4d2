package cni

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"ipoibd/cmd/ipoibd/internal/config"
)

const (
	maxConf    = 1 << 20 // bytes, with the result of the previous plugins
	maxControl = 107     // sun_path of unix(7), less its final zero
)

// conf is the configuration of a network. The specification lets runtimes add fields, so unknown ones
// are no mistake. The daemon checks Device, PKey and MTU.
type conf struct {
	types.PluginConf
	Control string `json:"control"` // path of the daemon's control socket
	Device  string `json:"device"`  // empty: the only one
	PKey    string `json:"pkey"`    // empty: the default
	MTU     int    `json:"mtu"`     // 0: the largest that fits
	// SourceCheck drops frames in which a pod uses or claims an address that it was not given.
	SourceCheck bool `json:"sourceCheck"`

	text []byte
}

// parseConf reads a configuration. Errors have the specification's codes 6 and 7.
func parseConf(text []byte) (*conf, error) {
	if len(text) > maxConf {
		return nil, types.NewError(types.ErrInvalidNetworkConfig,
			fmt.Sprintf("the configuration has more than %d bytes", maxConf), "")
	}
	c := conf{text: text, SourceCheck: true}
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the configuration cannot be read", err.Error())
	}
	if c.Control == "" {
		c.Control = config.DefaultControl
	}
	if !filepath.IsAbs(c.Control) || len(c.Control) > maxControl || strings.Contains(c.Control, "\x00") {
		return nil, types.NewError(types.ErrInvalidNetworkConfig,
			fmt.Sprintf("control: not an absolute path of at most %d bytes", maxControl),
			fmt.Sprintf("%.200q", c.Control))
	}
	return &c, nil
}
