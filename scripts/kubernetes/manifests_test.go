package kubernetes

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// overlay is what kubectl would apply.
type overlay struct {
	pod        corev1.PodTemplateSpec
	services   []corev1.Service
	policies   []networkingv1.NetworkPolicy
	configMaps []corev1.ConfigMap
}

// build decodes each object of an overlay. Unknown and repeated fields are errors.
func build(t *testing.T, name string) (o overlay) {
	t.Helper()
	objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join("../../docs/kubernetes", name))
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects.Resources() {
		text, err := object.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		decode := func(into any) {
			t.Helper()
			if err := yaml.UnmarshalStrict(text, into); err != nil {
				t.Errorf("%s %s: %v\n%s", object.GetKind(), object.GetName(), err, text)
			}
		}
		switch kind := object.GetApiVersion() + " " + object.GetKind(); kind {
		case "apps/v1 StatefulSet":
			var s appsv1.StatefulSet
			decode(&s)
			o.pod = s.Spec.Template
			requireSelects(t, s.Spec.Selector, o.pod.Labels)
		case "apps/v1 DaemonSet":
			var s appsv1.DaemonSet
			decode(&s)
			o.pod = s.Spec.Template
			requireSelects(t, s.Spec.Selector, o.pod.Labels)
		case "v1 Service":
			o.services = append(o.services, corev1.Service{})
			decode(&o.services[len(o.services)-1])
		case "networking.k8s.io/v1 NetworkPolicy":
			o.policies = append(o.policies, networkingv1.NetworkPolicy{})
			decode(&o.policies[len(o.policies)-1])
		case "v1 ConfigMap":
			o.configMaps = append(o.configMaps, corev1.ConfigMap{})
			decode(&o.configMaps[len(o.configMaps)-1])
		default:
			t.Errorf("unexpected object: %s", kind)
		}
	}
	return o
}

func requireSelects(t *testing.T, s *metav1.LabelSelector, of map[string]string) {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil || selector.Empty() || !selector.Matches(labels.Set(of)) {
		t.Errorf("%v does not select %v: %v", s, of, err)
	}
}

// daemon returns the daemon's container.
func (o *overlay) daemon(t *testing.T) *corev1.Container {
	t.Helper()
	for _, list := range [][]corev1.Container{o.pod.Spec.InitContainers, o.pod.Spec.Containers} {
		if i := slices.IndexFunc(list, func(c corev1.Container) bool { return c.Name == "ipoibd" }); i >= 0 {
			return &list[i]
		}
	}
	t.Fatal("no container ipoibd")
	return nil
}

var overlays = []string{"example", "device-plugin", "user-namespace", "daemonset", "cni"}

// onNodes are the overlays with one daemon on each node.
var onNodes = []string{"daemonset", "cni"}

// What the Pod Security Standards object to, by overlay and level. Everything else is allowed.
func TestPodSecurityStandards(t *testing.T) {
	capability := "non-default capabilities"
	for name, want := range map[string]map[podsecurity.Level][]string{
		"example": {
			podsecurity.LevelBaseline:   {capability, "hostPath volumes"},
			podsecurity.LevelRestricted: {"unrestricted capabilities", "restricted volume types", "runAsNonRoot != true", "runAsUser=0"},
		},
		"device-plugin": {
			podsecurity.LevelBaseline:   {capability},
			podsecurity.LevelRestricted: {"unrestricted capabilities", "runAsNonRoot != true", "runAsUser=0"},
		},
		// In a user namespace, the standards accept uid 0.
		"user-namespace": {
			podsecurity.LevelBaseline:   {capability},
			podsecurity.LevelRestricted: {"unrestricted capabilities"},
		},
		"daemonset": {
			podsecurity.LevelBaseline:   {capability, "host namespaces", "hostPath volumes", "hostPort"},
			podsecurity.LevelRestricted: {"host namespaces", "hostPort", "unrestricted capabilities", "restricted volume types", "runAsNonRoot != true", "runAsUser=0"},
		},
		"cni": {
			podsecurity.LevelBaseline:   {capability, "host namespaces", "hostPath volumes", "hostPort"},
			podsecurity.LevelRestricted: {"host namespaces", "hostPort", "unrestricted capabilities", "restricted volume types", "runAsNonRoot != true", "runAsUser=0"},
		},
	} {
		o := build(t, name)
		// The API server copies the ports of a pod in the host's network.
		if o.pod.Spec.HostNetwork {
			for i := range o.pod.Spec.Containers {
				for p := range o.pod.Spec.Containers[i].Ports {
					o.pod.Spec.Containers[i].Ports[p].HostPort = o.pod.Spec.Containers[i].Ports[p].ContainerPort
				}
			}
		}
		evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for level, reasons := range want {
			result := policy.AggregateCheckResults(evaluator.EvaluatePod(podsecurity.LevelVersion{Level: level, Version: podsecurity.LatestVersion()}, &o.pod.ObjectMeta, &o.pod.Spec))
			got := slices.Sorted(slices.Values(result.ForbiddenReasons))
			if !slices.Equal(got, slices.Sorted(slices.Values(reasons))) {
				t.Errorf("%s, %s: %s", name, level, result.ForbiddenDetail())
			}
		}
	}
}

// Nothing is privileged, and the daemon has only the capabilities, devices and memory that it
// needs.
func TestPrivileges(t *testing.T) {
	for _, name := range overlays {
		t.Run(name, func(t *testing.T) {
			o := build(t, name)
			spec, daemon := &o.pod.Spec, o.daemon(t)
			for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
				s := c.SecurityContext
				if s == nil || s.Privileged != nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
					t.Errorf("container %s: %+v", c.Name, s)
				}
				installs := name == "cni" && c.Name == "install" && len(c.VolumeMounts) == 1 && mounts(&c, "/opt/cni/bin")
				filters := slices.Contains(onNodes, name) && c.Name == "firewall" && len(c.VolumeMounts) == 1 && slices.Equal(s.Capabilities.Add, []corev1.Capability{"NET_ADMIN"})
				if c.Name != "ipoibd" && !filters && (len(c.VolumeMounts) > 0 && !installs || len(s.Capabilities.Add) > 0) {
					t.Errorf("container %s mounts %v and has %v", c.Name, c.VolumeMounts, s.Capabilities.Add)
				}
			}
			want := []corev1.Capability{"NET_ADMIN"}
			onNode := slices.Contains(onNodes, name)
			if onNode {
				want = []corev1.Capability{"NET_ADMIN", "NET_BROADCAST", "SYS_ADMIN"}
			}
			if got := daemon.SecurityContext.Capabilities.Add; !slices.Equal(got, want) {
				t.Errorf("capabilities %v, want %v", got, want)
			}
			if read := daemon.SecurityContext.ReadOnlyRootFilesystem; read == nil || !*read {
				t.Error("the root file system can be written")
			}
			if daemon.Resources.Limits.Memory().IsZero() || daemon.Resources.Requests.Memory().IsZero() || daemon.Resources.Requests.Cpu().IsZero() {
				t.Errorf("resources %+v", daemon.Resources)
			}
			if spec.EnableServiceLinks == nil || *spec.EnableServiceLinks || spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
				t.Error("variables of services or the token of an account reach the pod")
			}
			if spec.HostNetwork != onNode || spec.HostPID || spec.HostIPC {
				t.Errorf("host namespaces: %v %v %v", spec.HostNetwork, spec.HostPID, spec.HostIPC)
			}
			if mapped := spec.HostUsers != nil && !*spec.HostUsers; mapped != (name == "user-namespace") {
				t.Errorf("user namespace: %v", mapped)
			}
			for _, v := range spec.Volumes {
				if v.HostPath != nil && !(v.HostPath.Path == "/dev/net/tun" && *v.HostPath.Type == corev1.HostPathCharDev) && !(onNode && v.HostPath.Path == "/run/ipoibd") &&
					!(name == "cni" && slices.Contains([]string{"/opt/cni/bin", "/run/netns"}, v.HostPath.Path)) {
					t.Errorf("volume %s of the host: %+v", v.Name, v.HostPath)
				}
			}
			tun := daemon.Resources.Limits["squat.ai/tun"]
			if byPlugin := name == "device-plugin" || name == "user-namespace"; byPlugin != (tun.Value() == 1) || byPlugin == mounts(daemon, "/dev/net/tun") {
				t.Errorf("/dev/net/tun: %v of a device plugin, mounted %v", tun, mounts(daemon, "/dev/net/tun"))
			}
			if !mounts(daemon, "/run/ipoibd") {
				t.Error("no place for the control socket")
			}
		})
	}
}

func mounts(c *corev1.Container, path string) bool {
	return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == path })
}

// The application starts when ib0 is up, and a new image restarts only the daemon.
func TestNativeSidecar(t *testing.T) {
	for _, name := range overlays[:3] {
		o := build(t, name)
		c := o.pod.Spec.InitContainers[0]
		if c.Name != "ipoibd" || c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			t.Fatalf("%s: first container %s with restart policy %v", name, c.Name, c.RestartPolicy)
		}
		for what, p := range map[string]*corev1.Probe{"startup": c.StartupProbe, "readiness": c.ReadinessProbe} {
			if p == nil || p.Exec == nil || !slices.Equal(p.Exec.Command, []string{"ipoibd", "status", "--check"}) {
				t.Errorf("%s: %s probe %+v", name, what, p)
			}
		}
		if s := c.StartupProbe; s.PeriodSeconds > 1 || s.PeriodSeconds*s.FailureThreshold < 30 {
			t.Errorf("%s: startup probe %+v", name, s)
		}
	}
}

// Every probe asks the daemon by a command that gives up before the probe does.
func TestProbes(t *testing.T) {
	for _, name := range overlays {
		o := build(t, name)
		c := o.daemon(t)
		if c.LivenessProbe == nil {
			t.Errorf("%s: no liveness probe", name)
		}
		for _, p := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
			if p != nil && (p.Exec == nil || p.TimeoutSeconds <= 5) {
				t.Errorf("%s: probe %+v", name, p)
			}
		}
	}
}

// The name of the peers is that of a headless service, which finds the pods before they are ready.
func TestPeers(t *testing.T) {
	for _, name := range overlays {
		o := build(t, name)
		peers := ""
		for _, v := range o.daemon(t).Env {
			if v.Name == "IPOIBD_PEER" {
				peers = v.Value
			}
		}
		for _, m := range o.configMaps {
			var file struct{ Devices []struct{ Peers []string } }
			if err := yaml.Unmarshal([]byte(m.Data["ipoibd.yaml"]), &file); err != nil {
				t.Fatal(err)
			}
			if m.Data["ipoibd.yaml"] != "" {
				peers = file.Devices[0].Peers[0]
			}
		}
		i := slices.IndexFunc(o.services, func(s corev1.Service) bool { return s.Name == peers })
		if i < 0 {
			t.Errorf("%s: no service for the peers %q", name, peers)
			continue
		}
		s := o.services[i].Spec
		if s.ClusterIP != corev1.ClusterIPNone || !s.PublishNotReadyAddresses {
			t.Errorf("%s: %+v", name, s)
		}
		requireSelects(t, &metav1.LabelSelector{MatchLabels: s.Selector}, o.pod.Labels)
		if o.pod.Spec.HostNetwork && o.pod.Spec.DNSPolicy != corev1.DNSClusterFirstWithHostNet {
			t.Errorf("%s: with DNS policy %s, nodes do not find the service", name, o.pod.Spec.DNSPolicy)
		}
	}
}

// Only peers may send to UDP port 4791, and every other port is as open as without the policy.
func TestNetworkPolicy(t *testing.T) {
	for _, name := range overlays[:3] {
		o := build(t, name)
		p := o.policies[0].Spec
		requireSelects(t, &p.PodSelector, o.pod.Labels)
		requireSelects(t, p.Ingress[0].From[0].PodSelector, o.pod.Labels)
		for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
			for port := int32(1); port <= 65535; port++ {
				if roce := protocol == corev1.ProtocolUDP && port == 4791; accepts(p, false, protocol, port) == roce || !accepts(p, true, protocol, port) {
					t.Fatalf("%s: %s port %d: from a stranger %v, from a peer %v", name, protocol, port, !roce, accepts(p, true, protocol, port))
				}
			}
		}
	}
}

// The daemon sees the namespaces that are mounted after its start, at the paths that the plugin gives
// it; and the plugin that the init container installs is found there and looks for the daemon's socket
// where the host has it.
func TestCNI(t *testing.T) {
	o := build(t, "cni")
	daemon := o.daemon(t)
	i := slices.IndexFunc(daemon.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/run/netns" })
	if i < 0 || daemon.VolumeMounts[i].MountPropagation == nil || *daemon.VolumeMounts[i].MountPropagation != corev1.MountPropagationHostToContainer {
		t.Fatalf("namespaces: %+v", daemon.VolumeMounts)
	}
	init := o.pod.Spec.InitContainers
	install := init[slices.IndexFunc(init, func(c corev1.Container) bool { return c.Name == "install" })]
	for _, m := range append(install.VolumeMounts, daemon.VolumeMounts...) {
		v := slices.IndexFunc(o.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if host := o.pod.Spec.Volumes[v].HostPath; host != nil && host.Path != m.MountPath {
			t.Errorf("%s of the host is mounted on %s", host.Path, m.MountPath)
		}
	}
	if install.Image != daemon.Image || install.RestartPolicy != nil {
		t.Errorf("%+v", install)
	}
	program, dir := compile(t), t.TempDir()
	if out, err := exec.Command(program, install.Args[0], dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", install.Args, err, out)
	}
	plugin := exec.Command(filepath.Join(dir, "ipoibd"))
	plugin.Env = []string{"CNI_COMMAND=VERSION"}
	if out, err := plugin.Output(); err != nil || !strings.Contains(string(out), `"1.1.0"`) {
		t.Errorf("the installed plugin: %v\n%s", err, out)
	}
}

// The init container of the overlays for nodes loads rules that nft accepts, also when it has loaded them
// before.
func TestFirewall(t *testing.T) {
	for _, name := range onNodes {
		o := build(t, name)
		i := slices.IndexFunc(o.pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == "firewall" })
		if i < 0 {
			t.Fatalf("%s: no init container firewall", name)
		}
		c := o.pod.Spec.InitContainers[i]
		v := slices.IndexFunc(o.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == c.VolumeMounts[0].Name })
		from := o.pod.Spec.Volumes[v].ConfigMap.Name
		m := slices.IndexFunc(o.configMaps, func(m corev1.ConfigMap) bool { return m.Name == from })
		dir := t.TempDir()
		for file, text := range o.configMaps[m].Data {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		load := strings.ReplaceAll(strings.Join(c.Command, " "), c.VolumeMounts[0].MountPath, dir)
		script := load + " && " + load + " && nft list chain inet ipoibd forward"
		if out, err := exec.Command("unshare", "--map-root-user", "--net", "sh", "-c", script).CombinedOutput(); err != nil || !strings.Contains(string(out), "udp dport 4791 counter packets 0 bytes 0 drop") {
			t.Errorf("%s: %s: %v\n%s", name, script, err, out)
		}
	}
}

// accepts reports whether a policy accepts packets from a peer, or from any other sender.
func accepts(p networkingv1.NetworkPolicySpec, peer bool, protocol corev1.Protocol, port int32) bool {
	for _, rule := range p.Ingress {
		if len(rule.From) > 0 && !peer {
			continue
		}
		for _, r := range rule.Ports {
			last := r.Port.IntVal
			if r.EndPort != nil {
				last = *r.EndPort
			}
			if *r.Protocol == protocol && r.Port.IntVal <= port && port <= last {
				return true
			}
		}
	}
	return false
}

// compile builds the program and returns its path.
func compile(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "ipoibd")
	cmd := exec.Command("go", "build", "-o", program, "./cmd/ipoibd")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// The daemon itself accepts the arguments, variables and files. It stops at a control socket
// that it cannot create, before it touches the network.
func TestDaemonAccepts(t *testing.T) {
	program := compile(t)
	version, err := exec.Command(program, "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	const nowhere = "/proc/no/control.sock"
	for _, name := range overlays {
		o := build(t, name)
		c := o.daemon(t)
		if _, tag, _ := strings.Cut(c.Image, ":"); !strings.HasPrefix(string(version), fmt.Sprintf("ipoibd %s ", tag)) {
			t.Errorf("%s: image %s, but the program is %s", name, c.Image, version)
		}
		args := slices.Concat(c.Args, []string{"--control", nowhere})
		for _, m := range o.configMaps {
			if m.Data["ipoibd.yaml"] == "" {
				continue
			}
			file := filepath.Join(t.TempDir(), "ipoibd.yaml")
			if err := os.WriteFile(file, []byte(m.Data["ipoibd.yaml"]), 0o600); err != nil {
				t.Fatal(err)
			}
			for i, a := range args {
				if a == "/etc/ipoibd/ipoibd.yaml" {
					args[i] = file
				}
			}
		}
		run := exec.Command(program, args...)
		run.Env = []string{}
		for _, v := range c.Env {
			run.Env = append(run.Env, v.Name+"="+strings.ReplaceAll(cmp.Or(v.Value, "3"), "$(POD_INDEX)", "3"))
		}
		out, err := run.CombinedOutput()
		if run.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "create control socket") || strings.Contains(string(out), "ignored") {
			t.Errorf("%s: %v of %v: %v\n%s", name, args, run.Env, err, out)
		}
		for _, p := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
			if p == nil {
				continue
			}
			probe := exec.Command(program, append(p.Exec.Command[1:], "--control", "/nonexistent")...)
			if out, err := probe.CombinedOutput(); probe.ProcessState.ExitCode() != 3 {
				t.Errorf("%s: %v without a daemon: %v\n%s", name, p.Exec.Command, err, out)
			}
		}
	}
}
