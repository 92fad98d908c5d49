// What the API server's own admission code says of pods under the Pod Security Standard "restricted": pods by name are read as
// JSON, those that it would refuse are written by name with the reasons.
package main

import (
	"encoding/json"
	"log"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

func main() {
	pods, refused := map[string]corev1.Pod{}, map[string]string{}
	if err := json.NewDecoder(os.Stdin).Decode(&pods); err != nil {
		log.Fatal(err)
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks())
	if err != nil {
		log.Fatal(err)
	}
	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	for name, pod := range pods {
		result := policy.AggregateCheckResults(evaluator.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec))
		if !result.Allowed {
			refused[name] = result.ForbiddenDetail()
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(refused); err != nil {
		log.Fatal(err)
	}
}
