package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

// ipam is the IPAM plugin of a network. It gets the configuration in a version that it supports, since
// distributions have old ones, which lack STATUS and GC.
type ipam struct {
	kind string // its name
	text []byte
	full bool // it has STATUS and GC
}

// openIPAM finds the IPAM plugin of a network; nil: it has none.
func openIPAM(ctx context.Context, c *conf) (*ipam, error) {
	if c.IPAM.Type == "" {
		return nil, nil
	}
	path, err := invoke.FindInPath(c.IPAM.Type, filepath.SplitList(os.Getenv("CNI_PATH")))
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "no such IPAM plugin", err.Error())
	}
	info, err := invoke.GetVersionInfo(ctx, path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the IPAM plugin %s for its version: %w", c.IPAM.Type, err)
	}
	best, err := newest(info.SupportedVersions(), c.CNIVersion)
	if err != nil {
		return nil, types.NewError(types.ErrIncompatibleCNIVersion, "IPAM plugin "+c.IPAM.Type, err.Error())
	}
	text, err := inVersion(c, best)
	if err != nil {
		return nil, err
	}
	full, err := version.GreaterThanOrEqualTo(best, "1.1.0")
	return &ipam{c.IPAM.Type, text, full}, err
}

// newest returns the newest of some versions that is not newer than limit.
func newest(versions []string, limit string) (best string, err error) {
	for _, v := range versions {
		tooNew, err := version.GreaterThan(v, limit)
		if err != nil {
			return "", err
		}
		if better := best == ""; !tooNew {
			if !better {
				if better, err = version.GreaterThan(v, best); err != nil {
					return "", err
				}
			}
			if better {
				best = v
			}
		}
	}
	if best == "" {
		return "", fmt.Errorf("it supports versions %v, and the configuration has %s", versions, limit)
	}
	return best, nil
}

// inVersion returns a configuration, and the previous result in it, in another version.
func inVersion(c *conf, v string) ([]byte, error) {
	if v == c.CNIVersion {
		return c.text, nil
	}
	fields := map[string]any{}
	if err := json.Unmarshal(c.text, &fields); err != nil {
		return nil, err
	}
	fields["cniVersion"] = v
	if c.RawPrevResult != nil {
		parsed := c.PluginConf
		if err := version.ParsePrevResult(&parsed); err != nil {
			return nil, types.NewError(types.ErrDecodingFailure, "the previous result cannot be read", err.Error())
		}
		prev, err := parsed.PrevResult.GetAsVersion(v)
		if err != nil {
			return nil, err
		}
		fields["prevResult"] = prev
	}
	return json.Marshal(fields)
}

// add reserves addresses. Without an IPAM plugin the result is empty.
func (p *ipam) add(ctx context.Context) (*current.Result, error) {
	if p == nil {
		return &current.Result{CNIVersion: current.ImplementedSpecVersion}, nil
	}
	r, err := invoke.DelegateAdd(ctx, p.kind, p.text, nil)
	if err != nil {
		return nil, err
	}
	return current.NewResultFromResult(r)
}

// del releases the addresses. It succeeds if there are none.
func (p *ipam) del(ctx context.Context) error {
	if p == nil {
		return nil
	}
	return invoke.DelegateDel(ctx, p.kind, p.text, nil)
}

func (p *ipam) check(ctx context.Context) error {
	if p == nil {
		return nil
	}
	return invoke.DelegateCheck(ctx, p.kind, p.text, nil)
}

func (p *ipam) status(ctx context.Context) error {
	if p == nil || !p.full {
		return nil
	}
	return invoke.DelegateStatus(ctx, p.kind, p.text, nil)
}

func (p *ipam) gc(ctx context.Context) error {
	if p == nil || !p.full {
		return nil
	}
	return invoke.DelegateGC(ctx, p.kind, p.text, nil)
}
