package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"ipoibd/link/linktest/nstest"
)

const (
	schemaPath       = "../../docs/status.schema.json"
	doctorSchemaPath = "../../docs/doctor.schema.json"
)

var schemas = sync.OnceValues(func() (map[string]*jsonschema.Schema, error) {
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	all, errs := map[string]*jsonschema.Schema{}, []error{}
	for _, path := range []string{schemaPath, doctorSchemaPath} {
		schema, err := c.Compile(path)
		all[path], errs = schema, append(errs, err)
	}
	return all, errors.Join(errs...)
})

// followsSchema returns how the output of `ipoibd status --json` differs from its schema.
func followsSchema(status []byte) error { return follows(schemaPath, status) }

// follows returns how a command's output differs from a schema.
func follows(path string, output []byte) error {
	all, err := schemas()
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(output))
	if err != nil {
		return err
	}
	return all[path].Validate(value)
}

// The status follows its schema in each state that an operator can bring about. (In all
// other tests it is checked as well, whenever they read it.)
func TestStatusFollowsItsSchema(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hs := newHosts(t, 2)
	a := hs[0]
	a.start("--peer", nstest.IPv4(1), "--allow-faults")
	hs[1].start("--peer", nstest.IPv4(0))
	seen := map[string]bool{}
	check := func(what, state, device string) {
		t.Helper()
		eventually(t, repairLimit, what, func() bool {
			s := a.daemon.status()
			i, d := s.Interfaces[0], s.Devices[0]
			seen[fmt.Sprintf("%s because of %s", i.State, i.Why)], seen["device "+d.State] = true, true
			return i.State == state && d.State == device
		})
	}
	check("down", "down", "open")
	for _, h := range hs {
		h.Run("ip", "link", "set", ifName, "up")
		h.addAddrs(ifName)
	}
	check("up", "up", "open")
	a.waitCarrier()
	hs[1].waitCarrier()
	a.ping(hs[1])
	eventually(t, countLimit, "the status has the peer", func() bool { return len(a.daemon.status().Interfaces[0].Peers) == 1 })
	a.daemon.requirePost("/v1/reset", map[string]string{"scope": "device"})
	check("reset", "up", "open")
	a.daemon.requirePost("/v1/suspend", nil)
	check("suspended", "waiting", "suspended")
	a.daemon.requirePost("/v1/resume", nil)
	check("resumed", "up", "open")
	a.daemon.inject(faultRequest{Kind: "unplug"})
	check("unplugged", "waiting", "waiting")
	a.Run("ip", "link", "del", ifName)
	t.Logf("seen: %v", seen)
	for _, want := range []string{"down because of admin_down", "up because of none", "waiting because of device"} {
		if !seen[want] {
			t.Errorf("no interface was %s", want)
		}
	}
}

// The schema refuses output that it does not describe; otherwise the other tests would prove nothing.
func TestSchemaRefusesOtherOutput(t *testing.T) {
	for _, status := range []string{`{}`, `{"schema_version": 2}`, `[]`} {
		if err := followsSchema([]byte(status)); err == nil || !strings.Contains(err.Error(), "jsonschema validation failed") {
			t.Errorf("%s: %v", status, err)
		}
	}
}
