package cni

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"slices"
	"strings"
	"unicode"

	"github.com/containernetworking/cni/pkg/types"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/link"
)

// attachment identifies an interface of a container in a network. Runtimes use only letters, digits,
// '_', '.' and '-' for the first two; none of the three contains a slash.
type attachment struct{ network, container, ifName string }

// hashLen is the length of the hash in a name, of 5 bits per character: 60 bits, so two of a node's
// attachments never have the same in practice, and a name has the 15 characters that the kernel allows.
const hashLen = 12

const (
	namePrefix  = "cni"
	ownerPrefix = "cni"
)

// name returns the name of the attachment's interface in the daemon.
func (a attachment) name() string {
	sum := sha256.Sum256([]byte(a.owner()))
	return namePrefix + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:hashLen]
}

// owner returns the owner of the attachment's interface in the daemon.
func (a attachment) owner() string {
	return strings.Join([]string{ownerPrefix, a.network, a.container, a.ifName}, "/")
}

// parseOwner is the inverse of owner.
func parseOwner(s string) (a attachment, ok bool) {
	parts := strings.Split(s, "/")
	if len(parts) != 4 || parts[0] != ownerPrefix {
		return a, false
	}
	return attachment{parts[1], parts[2], parts[3]}, true
}

// validIfName adds to the rules of the specification, which skel has checked, the rules of the daemon,
// and that a name must survive JSON.
func validIfName(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r == '%' || r == unicode.ReplacementChar || !unicode.IsPrint(r)
	})
}

// garbage returns the names of a network's interfaces whose attachments are not valid.
func garbage(interfaces []report.Interface, network string, valid []types.GCAttachment) (names []string) {
	for i := range interfaces {
		f := &interfaces[i]
		a, ok := parseOwner(f.Owner)
		key := types.GCAttachment{ContainerID: a.container, IfName: a.ifName}
		if ok && f.Runtime && a.network == network && !slices.Contains(valid, key) {
			names = append(names, f.Name)
		}
	}
	return names
}

// definition is what the daemon is asked for: fields of an interface in docs/config.md.
type definition struct {
	Name        string   `json:"name"`
	Device      string   `json:"device,omitempty"`
	PKey        string   `json:"pkey,omitempty"`
	MTU         int      `json:"mtu,omitempty"`
	Netns       string   `json:"netns"`
	Netdev      string   `json:"netdev"`
	Owner       string   `json:"owner"`
	Addresses   []string `json:"addresses"`
	Routes      []string `json:"routes"`
	Up          bool     `json:"up"`
	SourceCheck bool     `json:"source_check,omitempty"`
}

// define returns the definition of an attachment's interface.
func define(c *conf, a attachment, netns string, l link.Assignment) (json.RawMessage, error) {
	d := definition{
		Name: a.name(), Device: c.Device, PKey: c.PKey, MTU: c.MTU,
		Netns: netns, Netdev: a.ifName, Owner: a.owner(), Addresses: []string{}, Routes: []string{}, Up: true,
		SourceCheck: c.SourceCheck && len(l.Addrs) > 0,
	}
	for _, p := range l.Addrs {
		d.Addresses = append(d.Addresses, p.String())
	}
	for _, r := range l.Routes {
		d.Routes = append(d.Routes, r.String())
	}
	return json.Marshal(d)
}
