import java.io.File;
import java.util.Map;
import java.util.concurrent.Executors;
import org.apache.flink.client.deployment.ClusterSpecification.ClusterSpecificationBuilder;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.kubernetes.kubeclient.Fabric8FlinkKubeClient;
import org.apache.flink.kubernetes.operator.kubeclient.factory.StandaloneKubernetesJobManagerFactory;
import org.apache.flink.kubernetes.operator.kubeclient.factory.StandaloneKubernetesTaskManagerFactory;
import org.apache.flink.kubernetes.operator.kubeclient.parameters.StandaloneKubernetesJobManagerParameters;
import org.apache.flink.kubernetes.operator.kubeclient.parameters.StandaloneKubernetesTaskManagerParameters;
import org.apache.flink.kubernetes.shaded.io.fabric8.kubernetes.client.Config;
import org.apache.flink.kubernetes.shaded.io.fabric8.kubernetes.client.ConfigBuilder;
import org.apache.flink.kubernetes.shaded.io.fabric8.kubernetes.client.DefaultKubernetesClient;
import org.apache.flink.kubernetes.shaded.io.fabric8.kubernetes.client.utils.Serialization;
import org.apache.flink.kubernetes.utils.KubernetesUtils;

/** The Deployments that the Flink operator makes in standalone mode: JOB_MANAGER_POD TASK_MANAGER_POD KEY=VALUE… as JSON by role. */
public class FlinkDeployments {
    public static void main(String[] arguments) throws Exception {
        var settings = new Configuration();
        for (int i = 2; i < arguments.length; i++) {
            var option = arguments[i].split("=", 2);
            settings.setString(option[0], option[1]);
        }
        var cluster = new ClusterSpecificationBuilder().setMasterMemoryMB(2048).setTaskManagerMemoryMB(2048).createClusterSpecification();
        var nowhere = new DefaultKubernetesClient(new ConfigBuilder(Config.empty()).withMasterUrl("http://localhost:1").build());
        var client = new Fabric8FlinkKubeClient(settings, nowhere, Executors.newSingleThreadScheduledExecutor());
        var main = "flink-main-container";
        var jobManager = StandaloneKubernetesJobManagerFactory.buildKubernetesJobManagerSpecification(
            KubernetesUtils.loadPodFromTemplateFile(client, new File(arguments[0]), main),
            new StandaloneKubernetesJobManagerParameters(settings, cluster)).getDeployment();
        var taskManager = StandaloneKubernetesTaskManagerFactory.buildKubernetesTaskManagerDeployment(
            KubernetesUtils.loadPodFromTemplateFile(client, new File(arguments[1]), main),
            new StandaloneKubernetesTaskManagerParameters(settings, cluster));
        System.out.println(Serialization.asJson(Map.of("jobManager", jobManager, "taskManager", taskManager)));
        System.exit(0); // the client's threads would go on
    }
}
